# %% [markdown]
# # Probabilities to act on
#
# A classifier for the digits 0 to 7, and four questions that a probability should answer: may it be believed, what if
# the classes come in other shares than in training, which labels are possible at all, and is this any of the classes?
# The digits 8 and 9 are kept out of training, to be the unknown.

# %%
from pathlib import Path

import numpy as np
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

from esupcon import ContrastiveClassifier
from esupcon.probability import (
    adapt_to_priors,
    auroc,
    bootstrap_intervals,
    class_priors,
    coverage,
    estimate_priors,
    fit_conformal,
    mean_set_size,
    prior_shift_test,
    reliability_bins,
    reliability_diagram,
)

X, y = load_digits(return_X_y=True)
known = y < 8
X_unknown = X[~known]


def draw(X, y, n):
    """n of the rows, by class, and the rest."""
    chosen, rest, y_chosen, y_rest = train_test_split(X, y, train_size=n, stratify=y, random_state=0)
    return (chosen, y_chosen), (rest, y_rest)


(X_train, y_train), rest = draw(X[known], y[known], 200)
(X_calibrate, y_calibrate), rest = draw(*rest, 200)
(X_aside, y_aside), (X_test, y_test) = draw(*rest, 400)
classifier = ContrastiveClassifier(epochs=40, auto_calibrate=False, random_state=0).fit(X_train, y_train)
sizes = [len(part) for part in (X_train, X_calibrate, X_aside, X_test)]
print("rows: {} to train on, {} to calibrate on, {} set aside, {} to test on".format(*sizes))
print(f"accuracy on the test rows: {100 * classifier.score(X_test, y_test):.1f} %")

# %% [markdown]
# ## May it be believed?
#
# The reliability diagram draws accuracy against confidence; the calibration error is the mean distance between them.
# One temperature, from rows that were not trained on, brings them together.

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
# ## Other shares
#
# Where the classifier is used, zeros and ones make up most of what comes. The shares are found from the probabilities
# alone, without a label, and the probabilities are changed accordingly.

# %%
rng = np.random.default_rng(0)
often = np.where(y_test < 2, 1.0, 0.1)
shifted = rng.choice(len(y_test), 300, p=often / often.sum())
source = class_priors(y_train, 8)
test = prior_shift_test(p[shifted], source)
shares = estimate_priors(p[shifted], source).priors
true_shares = class_priors(y_test[shifted], 8)
print(
    f"a shift at all? p-value {test.p_value:.1e}; on the unshifted test rows {prior_shift_test(p, source).p_value:.2f}"
)
print("shares of 0 and 1: found", shares[:2].round(2), "in truth", true_shares[:2].round(2))
adapted = adapt_to_priors(p[shifted], source, shares)
right = {
    name: float((probabilities.argmax(axis=1) == y_test[shifted]).mean())
    for name, probabilities in (("as trained", p[shifted]), ("adapted", adapted))
}
print(f"accuracy there: {100 * right['as trained']:.1f} % as trained, {100 * right['adapted']:.1f} % adapted")

# %% [markdown]
# ## Which labels are possible?
#
# A conformal set holds the right label with the probability asked for, whatever the classifier, provided that the rows
# it was fitted on, which had no part in training or calibration, are of the same kind as those it is used on. On a few
# hundred rows the share is off by a point or two, by chance.

# %%
p_aside = classifier.predict_proba(X_aside)
covered = {}
for miscoverage in (0.1, 0.01):
    sets = fit_conformal(p_aside, y_aside, miscoverage=miscoverage).predict(p)
    covered[miscoverage] = coverage(sets, y_test)
    print(
        f"asked for {100 * (1 - miscoverage):.0f} %: {100 * covered[miscoverage]:.1f} % of the sets hold the label, "
        f"{mean_set_size(sets):.2f} classes each on average"
    )

# %% [markdown]
# ## Is it any of them?
#
# Eights and nines belong to no class, and yet get a label. Two scores of how foreign a row is: how unsure the
# classifier is, and how far the row lies from the training rows in the embedding. The threshold is what 95 % of the
# rows set aside stay below.

# %%
separation = {}
for method in ("softmax", "knn"):
    familiar, foreign = classifier.ood_score(X_test, method), classifier.ood_score(X_unknown, method)
    threshold = np.quantile(classifier.ood_score(X_aside, method), 0.95)
    separation[method] = auroc(familiar, foreign)
    print(
        f"{method:8} rejects {100 * (foreign > threshold).mean():.0f} % of the unknown digits "
        f"and {100 * (familiar > threshold).mean():.0f} % of the known (area under the curve {separation[method]:.3f})"
    )
