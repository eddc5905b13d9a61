"""Measures the layers of a real model, in a process of its own: ``unidle span profile`` starts it.

    python -m unidle.span.measure < request.json

The request is one line of JSON on standard input, :class:`unidle.span.measure.load.ProfileRequest`. Once all is warm a line
``{"ready": true}`` is answered; after a further line of input it measures and answers ``{"result": ...}``, so that several
processes can measure at once. What fails is ``{"error": {"kind", "field", "problem", "value", "remedy"}}``, kind ``input`` or
``cannot``. What the user's own code prints goes to standard error. Standard library and PyTorch only.
"""
