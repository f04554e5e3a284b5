# %% [markdown]
# # Mislabelled data: find the wrong labels, then train without them
#
# 600 digits, 90 of them with a wrong label, which only we know. The classifier has to find out by itself: a sample
# whose neighbours in the embedding, and whose class mean, speak against its label is doubtful.

# %%
import numpy as np
from sklearn.datasets import load_digits
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import train_test_split
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from esupcon import ContrastiveClassifier

X, y = load_digits(return_X_y=True)
X, X_test, y, y_test = train_test_split(X, y, train_size=600, stratify=y, random_state=0)
rng = np.random.default_rng(0)
wrong = rng.permutation(len(y))[:90]
noisy = y.copy()
noisy[wrong] = (y[wrong] + rng.integers(1, 10, len(wrong))) % 10
print(f"{len(y)} rows, {len(wrong)} of them with a wrong label; {len(y_test)} test rows with the right ones")

# %% [markdown]
# First as if nothing were known.


# %%
def contrastive() -> ContrastiveClassifier:
    return ContrastiveClassifier(epochs=40, random_state=0)


usual = make_pipeline(StandardScaler(), LogisticRegression(max_iter=1000)).fit(X, noisy)
classifier = contrastive().fit(X, noisy)
accuracy = {"logistic regression, as it is": usual.score(X_test, y_test), "as it is": classifier.score(X_test, y_test)}
for name, value in accuracy.items():
    print(f"{name:30} {100 * value:.1f} % of the test rows right")

# %% [markdown]
# `label_issues` sorts the training rows, the most doubtful first. How many of those at the top are wrong is known here
# because we made them so.

# %%
issues = classifier.label_issues(return_details=True)
n_found = int(np.isin(issues.indices[:90], wrong).sum())
print(f"wrong labels among the 90 most doubtful rows: {n_found}; by chance there would be {90 * 90 / 600:.0f}")
for row, given, suggested, likelihood in list(
    zip(issues.indices, issues.given, issues.suggested, issues.likelihood, strict=True)
)[:3]:
    print(f"  row {row}: labelled {given} (likelihood {likelihood:.2f}), rather {suggested}; in truth {y[row]}")

# %% [markdown]
# In practice nobody knows how many are wrong. A line that needs no such knowledge: rows whose given label is less
# likely than not. Some right labels lie below it, too; a look at the rows would tell.

# %%
doubtful = issues.indices[issues.likelihood < 0.5]
precision = np.isin(doubtful, wrong).mean()
print(f"{len(doubtful)} rows have a label that is less likely than not; {100 * precision:.0f} % of these are wrong")

# %% [markdown]
# Then the same training again: without those rows, and with the suggested labels in their place.

# %%
kept = np.setdiff1d(np.arange(len(y)), doubtful)
accuracy["without the doubtful"] = contrastive().fit(X[kept], noisy[kept]).score(X_test, y_test)
mended = noisy.copy()
mended[doubtful] = issues.suggested[: len(doubtful)]
accuracy["with the suggestions"] = contrastive().fit(X, mended).score(X_test, y_test)
accuracy["had all labels been right"] = contrastive().fit(X, y).score(X_test, y_test)
for name in ("as it is", "without the doubtful", "with the suggestions", "had all labels been right"):
    print(f"{name:30} {100 * accuracy[name]:.1f} % of the test rows right")
