"""``unidle fill serve``: an OpenAI-compatible front door, and the processes that run the model.

The front door (``http``, ``text``) is a process without PyTorch. Each worker (``worker``) is a process with the model (``model``),
a paged cache of keys and values (``kv``) and a policy of batches (``batching``). Prefill is cut into pieces (``prefill``), so that
it can run in the bubbles of training as well.
"""
