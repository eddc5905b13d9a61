"""An exception in a worker of a DataLoader: the cause stands inside another traceback."""
from torch.utils.data import DataLoader, Dataset


class Images(Dataset):
    def __len__(self):
        return 8

    def __getitem__(self, index):
        if index == 5:
            raise OSError(f"image file is truncated (index {index})")
        return index


if __name__ == "__main__":
    for step, _ in enumerate(DataLoader(Images(), batch_size=1, num_workers=1)):
        print(f"step {step} loss 0.5")
