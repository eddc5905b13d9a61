"""A wrong option of the script itself."""
import argparse

parser = argparse.ArgumentParser(prog="usage.py")
parser.add_argument("--lr", type=float, required=True)
parser.parse_args()
