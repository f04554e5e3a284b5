# %% [markdown]
# # From cross entropy to ESupCon, in your own training loop
#
# This example trains the same encoder twice, with the same views, optimiser and number of steps: once with a linear
# layer and cross entropy, once with prototypes and ESupCon. The data are the digits of scikit-learn: 300 images for
# training, 150 for choosing settings, and the rest for testing.

# %%
import statistics

import torch
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from sklearn.neighbors import KNeighborsClassifier
from torch import nn

from esupcon.heads import PrototypeHead
from esupcon.losses import ESupConLoss
from esupcon.probability import accuracy, expected_calibration_error, fit_temperature, softmax

X, y = load_digits(return_X_y=True)
X, X_test, y, y_test = train_test_split(X / 16, y, train_size=450, stratify=y, random_state=0)
X, X_choose, y, y_choose = train_test_split(X, y, train_size=300, stratify=y, random_state=0)
images, labels = torch.tensor(X, dtype=torch.float32), torch.tensor(y)
print(f"{len(X)} images for training, {len(X_choose)} for choosing, {len(X_test)} for testing")

# %% [markdown]
# A view is a batch moved by up to one pixel, with noise added. The training loop is written once. It calls
# `loss_of(z, labels)` with the embeddings of both views.


# %%
def view(batch: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    down, right = torch.randint(-1, 2, (2,), generator=generator).tolist()
    moved = batch.view(-1, 8, 8).roll((down, right), dims=(1, 2)).flatten(1)
    return moved + 0.1 * torch.randn(batch.shape, generator=generator)


def train(encoder, head, loss_of, lr, seed, epochs=60, batch_size=100):
    generator = torch.Generator().manual_seed(seed)
    optimizer = torch.optim.Adam([*encoder.parameters(), *head.parameters()], lr=lr)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, epochs)
    for _ in range(epochs):
        for rows in torch.randperm(len(images), generator=generator).split(batch_size):
            views = torch.cat([view(images[rows], generator), view(images[rows], generator)])
            loss = loss_of(encoder(views), labels[rows].repeat(2))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        schedule.step()


def make_encoder() -> nn.Module:
    return nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 64))


# %% [markdown]
# **Before**: a linear layer, and cross entropy on its logits. **After**: a `PrototypeHead`, whose weight is passed to
# the loss together with the embeddings. There is no second stage: the head is trained together with the encoder.


# %%
def with_cross_entropy(lr, seed):
    torch.manual_seed(seed)
    encoder, head = make_encoder(), nn.Linear(64, 10)
    cross_entropy = nn.CrossEntropyLoss()
    train(encoder, head, lambda z, labels: cross_entropy(head(z), labels), lr, seed)
    return encoder, head


def with_esupcon(lr, seed, prototype_weight=1.0):
    torch.manual_seed(seed)
    encoder, head = make_encoder(), PrototypeHead(64, n_classes=10, temperature=0.1)
    esupcon = ESupConLoss(temperature=0.1, prototype_weight=prototype_weight)
    train(encoder, head, lambda z, labels: esupcon(z, labels, head.weight), lr, seed)
    return encoder, head


def logits_of(model, X):
    encoder, head = model
    with torch.no_grad():
        return head(encoder(torch.tensor(X, dtype=torch.float32))).double().numpy()


# %% [markdown]
# Each loss needs its own learning rate. We try three rates for each, choose the best on the images for choosing, and
# then train with three other seeds.

# %%


def show(name, rate, models):
    accuracies = [accuracy(softmax(logits_of(model, X_test)), y_test) for model in models]
    listed = ", ".join(f"{100 * one:.1f}" for one in accuracies)
    print(f"{name:13}  learning rate {rate}: test accuracy {listed} %, mean {100 * statistics.fmean(accuracies):.1f} %")


found, rates = {}, {}
for name, method in (("cross entropy", with_cross_entropy), ("ESupCon", with_esupcon)):
    tries = {lr: accuracy(softmax(logits_of(method(lr, seed=0), X_choose)), y_choose) for lr in (0.001, 0.003, 0.01)}
    rates[name] = max(tries, key=tries.get)
    found[name] = [method(rates[name], seed) for seed in (1, 2, 3)]
    show(name, rates[name], found[name])

# %% [markdown]
# The embedding is useful without the head, too. Here each test image is classified by its five nearest training
# images, compared by cosine similarity.

# %%
neighbour_accuracy = {}
for name, models in found.items():
    encoder = models[0][0]
    with torch.no_grad():
        z, z_test = encoder(images), encoder(torch.tensor(X_test, dtype=torch.float32))
    neighbour_accuracy[name] = KNeighborsClassifier(5, metric="cosine").fit(z, y).score(z_test, y_test)
    print(f"{name:13}  accuracy of the five nearest neighbours: {100 * neighbour_accuracy[name]:.1f} %")

# %% [markdown]
# If the neighbours are more accurate than the head, the prototypes have not learnt enough: 10 prototypes beside 200
# embeddings are only about a twentieth of the objective. A larger `prototype_weight` changes that. Note that this
# gives ESupCon one more try than cross entropy had.

# %%
found["ESupCon, 10x"] = [with_esupcon(rates["ESupCon"], seed, prototype_weight=10) for seed in (1, 2, 3)]
show("ESupCon, 10x", rates["ESupCon"], found["ESupCon, 10x"])

# %% [markdown]
# A classifier can be accurate and still too confident. Dividing the logits by one temperature, fitted on images that
# were not used for training, brings confidence and accuracy together. The predicted labels do not change.

# %%
calibration = {}
for name, models in found.items():
    temperature = fit_temperature(logits_of(models[0], X_choose), y_choose)
    logits = logits_of(models[0], X_test)
    calibration[name] = [expected_calibration_error(softmax(logits, T), y_test) for T in (1.0, temperature)]
    before, after = (100 * one for one in calibration[name])
    print(f"{name:13}  calibration error {before:.1f} %; with temperature {temperature:.2f}: {after:.1f} %")
