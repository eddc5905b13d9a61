import subprocess
import sys

import pytest


@pytest.mark.parametrize("module", ["taxonomy", "rows", "ratios", "attempt", "book", "money"])
def test_what_a_start_needs_does_not_load_numpy(module):
    code = f"import sys, unidle.ledger.{module}; print([m for m in ('numpy', 'zstd') if any(m in name for name in sys.modules)])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_sums_over_live_rows_do_not_load_parquet():
    code = """
import sys
from unidle.ledger.query import summary
from unidle.ledger.columns import empty
from unidle.ledger.sources import LiveRows
summary(LiveRows(empty()))
print(any("parquet" in name or "zstd" in name for name in sys.modules))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"
