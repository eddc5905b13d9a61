"""Names of PyTorch, NumPy, Lightning and Transformers that roles and loops are read from."""

from __future__ import annotations

from typing import Final

RETURNS: Final = {
    "torch.utils.data.DataLoader": "loader",
    "torch_geometric.loader.DataLoader": "loader",
    "torch.utils.data.TensorDataset": "dataset",
    "torch.utils.data.Subset": "dataset",
    "torch.amp.GradScaler": "scaler",
    "torch.from_numpy": "host",
    "torch.compile": "module",
    "torch.hub.load": "module",
    "torch.jit.script": "module",
    "torch.jit.load": "module",
    "transformers.pipeline": "pipeline",
    "sentence_transformers.SentenceTransformer": "module",
    "datasets.load_dataset": "dataset",
    "datasets.load_from_disk": "dataset",
    "PIL.Image.open": "image",
    "accelerate.Accelerator": "accelerator",
    "torch.device": "device",
    "np.random.default_rng": "random",
    "np.random.RandomState": "random",
}
DRAWN: Final = frozenset({"rand", "randn", "random", "random_sample", "standard_normal", "permutation"})
"""Methods of generators of NumPy whose first argument is a size, or that return arrays."""
WRAPS: Final = frozenset({
    "torch.nn.DataParallel", "torch.nn.DistributedDataParallel", "torch.compile", "torch.jit.script",
    "torch.distributed.fsdp.FullyShardedDataParallel",
})  # fmt: skip
SEVERAL_MODULES: Final = frozenset({"accelerator.prepare"})
PASSED_THROUGH: Final = frozenset({
    "tqdm", "trange", "track", "iter", "islice", "cycle", "list", "reversed", "Bar", "progress_bar",
})  # fmt: skip
FACTORIES: Final = frozenset({
    "tensor", "as_tensor", "zeros", "ones", "empty", "full", "arange", "linspace", "eye", "rand", "randn", "randint",
    "randperm", "normal", "logspace", "range",
})  # fmt: skip
NO_TENSOR: Final = frozenset({
    "device", "no_grad", "inference_mode", "enable_grad", "load", "save", "manual_seed", "Generator", "is_tensor",
    "set_grad_enabled", "compile", "get_rng_state", "set_num_threads", "Size", "autocast", "finfo", "iinfo", "equal",
    "allclose", "is_floating_point", "get_default_dtype", "set_default_dtype", "seed", "numel",
})  # fmt: skip
TENSOR_FACTS: Final = frozenset({
    "shape", "device", "dtype", "ndim", "is_cuda", "requires_grad", "grad_fn", "layout", "names", "itemsize",
})  # fmt: skip
TENSOR_TO_NUMBER: Final = frozenset({
    "item", "size", "dim", "numel", "nelement", "tolist", "is_contiguous", "stride", "data_ptr", "ndimension",
    "get_device", "element_size", "is_floating_point", "keys", "items", "values", "pop", "get", "update", "append",
})  # fmt: skip
MODULE_TO_MODULE: Final = frozenset({
    "to", "cuda", "cpu", "train", "eval", "half", "float", "double", "bfloat16", "requires_grad_", "compile", "apply",
})  # fmt: skip
MODULE_TO_PARAMETERS: Final = frozenset({"parameters", "named_parameters", "buffers", "named_buffers"})
ANNOTATIONS: Final = {
    "torch.Tensor": "tensor",
    "torch.nn.Module": "module",
    "torch.optim.Optimizer": "optimizer",
    "torch.utils.data.DataLoader": "loader",
    "np.ndarray": "array",
    "transformers.PreTrainedTokenizerBase": "tokenizer",
    "transformers.PreTrainedTokenizer": "tokenizer",
    "torch.LongTensor": "tensor",
    "torch.FloatTensor": "tensor",
}
STEP_METHODS: Final = frozenset({
    "training_step", "compute_loss", "on_train_batch_start", "on_train_batch_end", "on_before_optimizer_step",
    "on_after_backward", "on_before_backward", "on_before_zero_grad", "optimizer_step", "on_step_end",
})  # fmt: skip
"""Of Lightning modules, callbacks and Hugging Face trainers: what runs in each training step."""
MODULES: Final = (
    "torch.nn.Module",
    "lightning.LightningModule",
    "torch.nn.Sequential",
    "transformers.PreTrainedModel",
)
MODULE_LIKE: Final = ("Module", "PreTrainedModel", "Model", "Net", "Layer", "Block")
TRAINERS: Final = ("Trainer", "LightningModule", "Callback", "TrainerCallback", "LightningDataModule")
DATASETS: Final = ("torch.utils.data.Dataset", "torch.utils.data.IterableDataset")
NO_GRAD: Final = frozenset(
    {"torch.no_grad", "torch.inference_mode", "torch.set_grad_enabled", "torch.autograd.no_grad"}
)
ACCELERATORS: Final = ("cuda", "mps", "xpu", "hpu", "npu", "xla")
