"""Training of one model across data centres: installed by ``unidle[span]``. Nothing of unidle below imports it.

| package | |
|---|---|
| ``model`` | what is trained where: sites, links, layers, costs |
| ``simulate`` | schedules, and when each operation of an iteration happens; its check, bound and ledger |
| ``plan`` | which sites, stages and schedule are best |
| ``replan`` | what a run does when times change, or sites are lost |
| ``files`` | the span file, into the types of the above |
| ``wan`` | byte buffers over many TCP flows between sites |
| ``rank`` | one rank of a run |
| ``measure`` | the time of each layer of a real model |
| ``run`` | real runs: hosts, the gang, attempts |
| ``cli`` | ``unidle span`` |

``model``, ``simulate``, ``plan`` and ``replan`` are pure.
"""
