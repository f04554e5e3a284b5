"""Find out what is wrong with data or a run, why, and what to do about it.

`check_data` checks data before training, `Watch` a run during training, `check_after` the probabilities of the trained
classifier. Each returns findings and prints nothing; docs/troubleshooting.md has a section for every code.
"""

from esupcon.doctor.data import check_after, check_data
from esupcon.doctor.finding import CODES, SEVERITIES, Finding
from esupcon.doctor.watch import LOSSES, Watch

__all__ = ["CODES", "LOSSES", "SEVERITIES", "Finding", "Watch", "check_after", "check_data"]
