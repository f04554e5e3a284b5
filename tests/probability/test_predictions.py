import pickle

import numpy as np
import pytest

from esupcon.probability import Predictions, log_softmax, softmax


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_loaded_predictions_equal_the_saved_ones(tmp_path, dtype) -> None:
    logits = np.array([[1.5, -2.0, -np.inf], [0.25, 3.0, 1.0]], dtype=dtype)
    saved = Predictions(logits, np.array([0, 2], dtype=np.uint8))
    path = tmp_path / "run.predictions"
    Predictions([[1, 2]], [0]).save(path)
    assert saved.save(str(path)) == path  # replaced
    assert list(tmp_path.iterdir()) == [path]
    loaded = Predictions.load(path)
    assert loaded.logits.dtype == dtype
    assert np.array_equal(loaded.logits, logits)
    assert loaded.labels.tolist() == [0, 2]
    assert loaded.labels.dtype == np.int64
    assert (len(loaded), loaded.n_classes) == (2, 3)
    np.testing.assert_array_equal(loaded.probabilities(2.0), softmax(logits, 2.0))


def test_predictions_do_not_share_memory_with_the_given_array() -> None:
    logits = np.zeros((2, 2))
    predictions = Predictions(logits, [0, 1])
    logits[:] = np.nan
    assert (predictions.logits == 0).all()


class Trap:
    def __reduce__(self):
        return (pytest.fail, ("the pickle was executed",))


@pytest.mark.parametrize("kind", ["other names", "pickle", "object array"])
def test_other_files_are_refused_and_never_executed(tmp_path, kind: str) -> None:
    path = tmp_path / "predictions.npz"
    match kind:
        case "other names":
            np.savez(path, x=np.zeros((2, 2)))
        case "pickle":
            path.write_bytes(pickle.dumps(Trap()))
        case "object array":
            np.savez(path, logits=np.array([Trap()], dtype=object), labels=np.zeros(1, dtype=int))
    with pytest.raises(ValueError, match=r"predictions\.npz must be an \.npz file with plain arrays") as caught:
        Predictions.load(path)
    assert "\n" not in str(caught.value)


def test_missing_files_and_folders_are_named(tmp_path) -> None:
    with pytest.raises(FileNotFoundError, match=r"Predictions\.save"):
        Predictions.load(tmp_path / "absent.npz")
    with pytest.raises(FileNotFoundError, match="needs an existing folder"):
        Predictions([[1, 2]], [0]).save(tmp_path / "absent" / "predictions.npz")


def test_softmax_of_extreme_logits() -> None:
    np.testing.assert_allclose(softmax([[1e6, 1e6 - np.log(3)]]), [[0.75, 0.25]], rtol=1e-9)
    np.testing.assert_array_equal(softmax([[1e90, -1e90], [0.0, -np.inf]], 1e-90), [[1, 0], [1, 0]])
    np.testing.assert_allclose(log_softmax([[0.0, -800.0]]), [[0.0, -800.0]], atol=1e-12)
    np.testing.assert_allclose(softmax([[3.0, 1.0]], 2.0), softmax([[1.5, 0.5]]))
    assert softmax(np.ones((3, 7), dtype=np.float16)).sum(axis=1) == pytest.approx(1.0, abs=1e-15)
