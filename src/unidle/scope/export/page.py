"""The head of pages that stand alone: they ask for nothing outside themselves, and a content policy forbids it to them."""

from __future__ import annotations

import base64
import hashlib
from html import escape


def head(title: str, style: str, script: str) -> str:
    """From the document type to the start of the body. ``script`` is the one text that the page may run."""
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    policy = (
        f"default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-{digest}'; "
        "base-uri 'none'; form-action 'none'"
    )
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        '<meta name="color-scheme" content="light dark"><meta name="referrer" content="no-referrer">\n'
        f"<title>{escape(title)}</title>\n<style>{style}</style>\n</head><body>\n"
    )
