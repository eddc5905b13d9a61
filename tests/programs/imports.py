"""A package that is not installed here."""
import torch_geometric_that_is_not_there
