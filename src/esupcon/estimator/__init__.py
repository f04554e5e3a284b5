"""`ContrastiveClassifier`, which follows scikit-learn's contract, and `load` for what it saved."""

from esupcon.estimator.classifier import ContrastiveClassifier
from esupcon.estimator.insight import Explanation, LabelIssues
from esupcon.estimator.persistence import load

__all__ = ["ContrastiveClassifier", "Explanation", "LabelIssues", "load"]
