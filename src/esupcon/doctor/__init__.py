"""Names what is wrong with data or with a run, why, and what to do about it.

`check_data` looks before training, `Watch` during it, `check_after` at the trained classifier's probabilities. Each
returns findings and prints nothing; docs/troubleshooting.md has a section for every code.
"""

from esupcon.doctor.batches import absent_share, alone_share, prototype_share
from esupcon.doctor.data_checks import check_data
from esupcon.doctor.finding import CODES, SEVERITIES, Finding
from esupcon.doctor.label_check import check_after
from esupcon.doctor.watch import Watch

__all__ = [
    "CODES",
    "SEVERITIES",
    "Finding",
    "Watch",
    "absent_share",
    "alone_share",
    "check_after",
    "check_data",
    "prototype_share",
]
