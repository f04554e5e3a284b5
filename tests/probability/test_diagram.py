import sys
from xml.etree import ElementTree

import numpy as np
import pytest

from esupcon.probability import paper_calibration, reliability_diagram


@pytest.fixture(scope="module")
def report(cifar10):
    return paper_calibration(cifar10)


def heights(axes, *, filled: bool) -> dict[float, float]:
    """Top of each plain bar, or of each hatched one, by its left edge."""
    bars = [patch for patch in axes.patches if bool(patch.get_hatch()) != filled]
    return {round(bar.get_x(), 6): bar.get_y() + bar.get_height() for bar in bars}


def test_bars_show_accuracy_gaps_end_at_confidence_and_histogram_shows_shares(report) -> None:
    figure = reliability_diagram(report.bins_before, report.bins_after)
    for column, bins in enumerate((report.bins_before, report.bins_after)):
        held = np.flatnonzero(bins.counts)
        upper, lower = figure.axes[column], figure.axes[2 + column]
        accuracy, gap, shares = heights(upper, filled=True), heights(upper, filled=False), heights(lower, filled=True)
        assert len(accuracy) == len(gap) == len(shares) == len(held)
        for b in held:
            left = round(bins.edges[b], 6)
            assert accuracy[left] == pytest.approx(bins.accuracy[b])
            assert gap[left] == pytest.approx(bins.confidence[b])
            assert shares[left] == pytest.approx(bins.counts[b] / report.n_evaluation)


def test_error_is_written_on_the_diagram(report) -> None:
    text = reliability_diagram(report.bins_before).axes[0].texts[0].get_text()
    assert text.splitlines() == [f"ECE {100 * report.ece_before:.2f} %", f"n = {report.n_evaluation:,}"]


def test_files_of_every_format_are_reproducible(tmp_path, report) -> None:
    import matplotlib

    before = dict(matplotlib.rcParams)
    for suffix in ("png", "svg", "pdf"):
        first, second = tmp_path / f"first.{suffix}", tmp_path / f"second.{suffix}"
        reliability_diagram(report.bins_before, report.bins_after, path=first)
        reliability_diagram(report.bins_before, report.bins_after, path=str(second))
        assert first.read_bytes() == second.read_bytes()
    assert dict(matplotlib.rcParams) == before
    root = ElementTree.parse(tmp_path / "first.svg").getroot()
    words = " ".join("".join(node.itertext()) for node in root.iter("{http://www.w3.org/2000/svg}text"))
    for expected in ("confidence", "accuracy", "ECE", "gap", "after calibration", "mean confidence"):
        assert expected in words
    assert len(list(tmp_path.iterdir())) == 6


def test_impossible_files_and_a_missing_matplotlib_are_named(tmp_path, report, monkeypatch) -> None:
    with pytest.raises(ValueError, match=r"must end in \.png, \.svg or \.pdf; got 'plot\.gif'"):
        reliability_diagram(report.bins_before, path=tmp_path / "plot.gif")
    with pytest.raises(FileNotFoundError, match="folder"):
        reliability_diagram(report.bins_before, path=tmp_path / "absent" / "plot.png")
    assert list(tmp_path.iterdir()) == []
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(ValueError, match=r"pip install 'esupcon\[report\]'"):
        reliability_diagram(report.bins_before)
