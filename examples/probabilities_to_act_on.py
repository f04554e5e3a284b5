# %% [markdown]
# # Probabilities for decisions
#
# We train a classifier for the digits 0 to 7 and answer four questions with its probabilities: Are they reliable?
# What if classes occur in other shares than in training? Which labels are possible? Does the sample belong to any
# class? The digits 8 and 9 are left out of training and serve as unknown samples.

# %%
from pathlib import Path

import numpy as np
from sklearn.datasets import load_digits
from sklearn.metrics import roc_auc_score
from sklearn.model_selection import train_test_split

from esupcon import ContrastiveClassifier
from esupcon.probability import (
    adapt_to_priors,
    bootstrap_intervals,
    estimate_priors,
    fit_conformal,
    reliability_bins,
    reliability_diagram,
)

X, y = load_digits(return_X_y=True)
known = y < 8
X_unknown = X[~known]


def draw(X, y, n):
    """Return n rows, stratified by class, and the rest."""
    chosen, rest, y_chosen, y_rest = train_test_split(X, y, train_size=n, stratify=y, random_state=0)
    return (chosen, y_chosen), (rest, y_rest)


(X_train, y_train), rest = draw(X[known], y[known], 200)
(X_calibrate, y_calibrate), rest = draw(*rest, 200)
(X_aside, y_aside), (X_test, y_test) = draw(*rest, 400)
# A temperature above the recommended one makes the classifier too unsure, which calibration corrects.
classifier = ContrastiveClassifier(epochs=40, temperature=0.2, auto_calibrate=False, random_state=0)
classifier.fit(X_train, y_train)
sizes = [len(part) for part in (X_train, X_calibrate, X_aside, X_test)]
print("rows: {} for training, {} for calibration, {} set aside, {} for testing".format(*sizes))
print(f"accuracy on the test rows: {100 * classifier.score(X_test, y_test):.1f} %")

# %% [markdown]
# ## Are the probabilities reliable?
#
# The reliability diagram shows accuracy against confidence. The calibration error is the mean distance between them.
# One temperature, fitted on rows that were not used for training, reduces it.

# %%
raw = classifier.predict_proba(X_test)
classifier.calibrate(X_calibrate, y_calibrate)
p = classifier.predict_proba(X_test)
for name, probabilities in (("before", raw), ("after", p)):
    error = bootstrap_intervals(probabilities, y_test)["ece"]
    print(f"calibration error {name}: {100 * error.value:.1f} % ({100 * error.low:.1f} to {100 * error.high:.1f})")
pictures = Path("runs/examples")
pictures.mkdir(parents=True, exist_ok=True)
figure = reliability_diagram(
    reliability_bins(raw, y_test), reliability_bins(p, y_test), path=pictures / "reliability.png"
)
print(f"the diagram is in {pictures / 'reliability.png'}")
figure  # noqa: B018 - a notebook shows it

# %% [markdown]
# ## Other class shares
#
# Suppose that in use most digits are zeros and ones. The shares can be estimated from the probabilities alone,
# without labels, and the probabilities adapted to them.

# %%
rng = np.random.default_rng(0)
often = np.where(y_test < 2, 1.0, 0.1)
shifted = rng.choice(len(y_test), 300, p=often / often.sum())
source = np.bincount(y_train) / len(y_train)
shares = estimate_priors(p[shifted], source)
true_shares = np.bincount(y_test[shifted]) / len(shifted)
print("shares of 0 and 1: estimated", shares[:2].round(2), "true", true_shares[:2].round(2))
adapted = adapt_to_priors(p[shifted], source, shares)
right = {
    name: float((probabilities.argmax(axis=1) == y_test[shifted]).mean())
    for name, probabilities in (("as trained", p[shifted]), ("adapted", adapted))
}
print(
    f"accuracy on these rows: {100 * right['as trained']:.1f} % before, {100 * right['adapted']:.1f} % after adapting"
)

# %% [markdown]
# ## Which labels are possible?
#
# A conformal set contains the correct label with a chosen probability. This holds for every classifier, provided that
# the rows used to fit the sets come from the same distribution as new rows and were not used for training or
# calibration. On a few hundred rows the measured share differs by a point or two by chance.

# %%
p_aside = classifier.predict_proba(X_aside)
covered = {}
for miscoverage in (0.1, 0.01):
    sets = fit_conformal(p_aside, y_aside, miscoverage=miscoverage).predict(p)
    covered[miscoverage] = sets[np.arange(len(y_test)), y_test].mean()
    print(
        f"asked for {100 * (1 - miscoverage):.0f} %: {100 * covered[miscoverage]:.1f} % of the sets contain the label, "
        f"mean size {sets.sum(axis=1).mean():.2f}"
    )

# %% [markdown]
# ## Does the sample belong to any class?
#
# Eights and nines belong to no class, but the classifier gives them a label. Two outlier scores are compared: how
# uncertain the classifier is, and how far the sample lies from the training samples in the embedding. The threshold
# is the value that 95 % of the rows set aside stay below.

# %%
separation = {}
for method in ("softmax", "knn"):
    familiar, foreign = classifier.ood_score(X_test, method), classifier.ood_score(X_unknown, method)
    threshold = np.quantile(classifier.ood_score(X_aside, method), 0.95)
    is_foreign = np.repeat([0, 1], [len(familiar), len(foreign)])
    separation[method] = roc_auc_score(is_foreign, np.concatenate([familiar, foreign]))
    print(
        f"{method:8} rejects {100 * (foreign > threshold).mean():.0f} % of the unknown digits "
        f"and {100 * (familiar > threshold).mean():.0f} % of the known ones (AUROC {separation[method]:.3f})"
    )
