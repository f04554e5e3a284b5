# %% [markdown]
# # Find wrong labels, then train without them
#
# We take 600 digits and change the labels of 90. The classifier does not know which. A label is suspicious if the
# neighbours of its sample in the embedding, and the class means, point to another class.

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
print(f"{len(y)} training rows, {len(wrong)} of them with a wrong label; {len(y_test)} test rows with correct labels")

# %% [markdown]
# First we train on the data as they are.


# %%
def contrastive() -> ContrastiveClassifier:
    return ContrastiveClassifier(epochs=40, random_state=0)


usual = make_pipeline(StandardScaler(), LogisticRegression(max_iter=1000)).fit(X, noisy)
classifier = contrastive().fit(X, noisy)
accuracy = {"logistic regression, all rows": usual.score(X_test, y_test), "all rows": classifier.score(X_test, y_test)}
for name, value in accuracy.items():
    print(f"{name:30} test accuracy {100 * value:.1f} %")

# %% [markdown]
# `label_issues` sorts the training rows, the most suspicious label first. Since we changed the labels ourselves, we
# can count how many of the first 90 are wrong.

# %%
issues = classifier.label_issues(return_details=True)
n_found = int(np.isin(issues.indices[:90], wrong).sum())
print(f"wrong labels among the 90 most suspicious rows: {n_found}; expected by chance: {90 * 90 / 600:.0f}")
for row, given, suggested, likelihood in list(
    zip(issues.indices, issues.given, issues.suggested, issues.likelihood, strict=True)
)[:3]:
    print(f"  row {row}: labelled {given} (likelihood {likelihood:.2f}), suggested {suggested}, correct {y[row]}")

# %% [markdown]
# In practice the number of wrong labels is unknown. A threshold that does not need it: take the rows whose given
# label has a likelihood below one half. Some correct labels are among them, so look at the rows before you change
# anything.

# %%
suspicious = issues.indices[issues.likelihood < 0.5]
precision = np.isin(suspicious, wrong).mean()
print(f"{len(suspicious)} rows have a label with a likelihood below 0.5; {100 * precision:.0f} % of these are wrong")

# %% [markdown]
# Then we train again, once without these rows and once with the suggested labels.

# %%
kept = np.setdiff1d(np.arange(len(y)), suspicious)
accuracy["without suspicious rows"] = contrastive().fit(X[kept], noisy[kept]).score(X_test, y_test)
corrected = noisy.copy()
corrected[suspicious] = issues.suggested[: len(suspicious)]
accuracy["with suggested labels"] = contrastive().fit(X, corrected).score(X_test, y_test)
accuracy["with correct labels"] = contrastive().fit(X, y).score(X_test, y_test)
for name in ("all rows", "without suspicious rows", "with suggested labels", "with correct labels"):
    print(f"{name:30} test accuracy {100 * accuracy[name]:.1f} %")
