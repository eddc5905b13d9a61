"""Work for the bubbles of training: prefill of an inference service first. Installed by ``unidle[fill]``.

| package | |
|---|---|
| ``model`` | what prefill costs: time of its pieces, keys and values, weights |
| ``sliced`` | the protocol of a filler: its next piece, run it, give up |
| ``policy`` | windows and their forecast, inference pipelines, admission: the same code simulated and live |
| ``simulate`` | training with jitter, and what the policy makes of its waits |
| ``files`` | the fill file, into the types of the above |
| ``cli`` | ``unidle fill`` |

``model``, ``policy`` and ``simulate`` are pure. BubbleTea (arXiv 2411.14458) published no code: this is a reconstruction of its
idea, with policies of its own.
"""
