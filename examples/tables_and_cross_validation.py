# %% [markdown]
# # Tables and cross-validation with scikit-learn
#
# `ContrastiveClassifier` is a scikit-learn estimator and works with cross-validation, searches and pipelines. The
# data are the breast cancer table of scikit-learn: 569 tumours, 30 measurements, two classes.

# %%
from sklearn.datasets import load_breast_cancer
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import GridSearchCV, StratifiedKFold, cross_val_score, train_test_split
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from esupcon import ContrastiveClassifier
from esupcon.probability import expected_calibration_error, negative_log_likelihood

table = load_breast_cancer()
X, y = table.data, table.target_names[table.target]
print(f"{X.shape[0]} rows, {X.shape[1]} columns, classes {' and '.join(table.target_names)}")

# %% [markdown]
# First cross-validation, compared with logistic regression. The estimator standardises the columns itself, and uses
# augmentation for tables.

# %%
folds = StratifiedKFold(3, shuffle=True, random_state=0)
contrastive = ContrastiveClassifier(epochs=20, random_state=0)
usual = make_pipeline(StandardScaler(), LogisticRegression(max_iter=1000))
scores = {
    name: cross_val_score(model, X, y, cv=folds)
    for name, model in (("contrastive classifier", contrastive), ("logistic regression", usual))
}
for name, score in scores.items():
    print(
        f"{name:22}  accuracy {100 * score.mean():.1f} %, folds from {100 * score.min():.1f} to {100 * score.max():.1f}"
    )

# %% [markdown]
# Next the probabilities: without calibration, with the temperature that `fit` finds, and with a temperature fitted on
# 150 other rows. The columns of `predict_proba` are in the order of `classes_`.

# %%
X_train, X_rest, y_train, y_rest = train_test_split(X, y, train_size=250, stratify=y, random_state=0)
X_more, X_test, y_more, y_test = train_test_split(X_rest, y_rest, train_size=150, stratify=y_rest, random_state=0)
found = {
    "not calibrated": ContrastiveClassifier(epochs=20, auto_calibrate=False, random_state=0).fit(X_train, y_train),
    "calibrated by fit": ContrastiveClassifier(epochs=20, random_state=0).fit(X_train, y_train),
    "calibrated on 150 rows": ContrastiveClassifier(epochs=20, auto_calibrate=False, random_state=0).fit(
        X_train, y_train
    ),
}
found["calibrated on 150 rows"].calibrate(X_more, y_more)
losses = {}
for name, model in found.items():
    probabilities = model.predict_proba(X_test)
    codes = (y_test == model.classes_[1]).astype(int)
    error = expected_calibration_error(probabilities, codes)
    losses[name] = negative_log_likelihood(probabilities, codes)
    temperature = model.calibration_temperature_
    print(f"{name:22}  temperature {temperature:.2f}, ECE {100 * error:.1f} %, log loss {losses[name]:.3f}")

# %% [markdown]
# Then a search over settings, as with any estimator. The test rows are not used in it. Accuracy does not depend on
# calibration, so it is switched off.

# %%
uncalibrated = ContrastiveClassifier(epochs=20, auto_calibrate=False, random_state=0)
search = GridSearchCV(uncalibrated, {"method": ["ce", "esupcon"], "temperature": [0.1, 0.3]}, cv=2)
search.fit(X_train, y_train)
print("the search chose", ", ".join(f"{name} {value}" for name, value in search.best_params_.items()))
print(f"accuracy on the {len(y_test)} test rows: {100 * search.score(X_test, y_test):.1f} %")

# %% [markdown]
# `transform` returns the embedding, which a pipeline can pass to another estimator, here a logistic regression.

# %%
chained = make_pipeline(uncalibrated, LogisticRegression(max_iter=1000))
chained.fit(X_train, y_train)
width = chained[0].transform(X_test).shape[1]
print(f"logistic regression on an embedding of {width} columns: {100 * chained.score(X_test, y_test):.1f} %")
