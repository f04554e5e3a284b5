from xml.etree import ElementTree

import numpy as np
import pytest
from matplotlib.figure import Figure
from PIL import Image

from esupcon.probability import (
    bootstrap_interval,
    calibration_diagram,
    paper_calibration,
    reliability_bins,
    reliability_diagram,
    softmax,
)


@pytest.fixture(scope="module")
def report(cifar10):
    return paper_calibration(cifar10.logits, cifar10.labels, n_resamples=100)


def heights(axes, *, filled: bool) -> dict[float, float]:
    """Top of each plain bar, or of each hatched one, by its left edge."""
    bars = [patch for patch in axes.patches if bool(patch.get_hatch()) != filled]
    return {round(bar.get_x(), 6): bar.get_y() + bar.get_height() for bar in bars}


def test_bars_show_accuracy_and_gaps_reach_to_confidence(report) -> None:
    figure = calibration_diagram(report)
    for axes, bins in zip(figure.axes[:2], (report.bins_before, report.bins_after), strict=True):
        held = np.flatnonzero(bins.counts)
        accuracy, gap = heights(axes, filled=True), heights(axes, filled=False)
        assert len(accuracy) == len(gap) == len(held)
        for b in held:
            left = round(bins.edges[b], 6)
            assert accuracy[left] == pytest.approx(bins.accuracy[b])
            assert gap[left] == pytest.approx(bins.confidence[b])


def test_over_and_underconfidence_are_hatched_apart() -> None:
    p = np.array([[0.9, 0.1]] * 4 + [[0.6, 0.4]] * 4)
    figure = reliability_diagram(reliability_bins(p, [1, 1, 0, 0, 0, 0, 0, 0]))
    hatches = {round(bar.get_x(), 6): bar.get_hatch()[0] for bar in figure.axes[0].patches if bar.get_hatch()}
    assert hatches == {round(13 / 15, 6): "/", round(9 / 15, 6): "\\"}


def test_the_histogram_shows_where_the_samples_are(report) -> None:
    lower = calibration_diagram(report).axes[2]
    shares = heights(lower, filled=True)
    assert sum(shares.values()) == pytest.approx(1.0)
    assert shares[round(14 / 15, 6)] == pytest.approx(report.bins_before.counts[14] / 2400)


def test_the_error_and_its_interval_are_written_on_it(report) -> None:
    text = calibration_diagram(report).axes[0].texts[0].get_text()
    interval = report.ece_before_interval
    assert text.splitlines() == [
        f"ECE {100 * report.ece_before:.2f} %",
        "95 % interval",
        f"{100 * interval.low:.2f} to {100 * interval.high:.2f} %",
        "n = 2,400",
    ]
    alone = reliability_diagram(report.bins_before).axes[0].texts[0].get_text()
    assert alone.splitlines() == [f"ECE {100 * report.ece_before:.2f} %", "n = 2,400"]


def test_files_of_every_kind_the_same_each_time(tmp_path, report) -> None:
    for suffix in ("png", "svg", "pdf"):
        first, second = tmp_path / f"first.{suffix}", tmp_path / f"second.{suffix}"
        calibration_diagram(report, first)
        calibration_diagram(report, str(second))
        assert first.read_bytes() == second.read_bytes()
    with Image.open(tmp_path / "first.png") as image:
        assert image.width > 1200
    root = ElementTree.parse(tmp_path / "first.svg").getroot()
    words = " ".join("".join(node.itertext()) for node in root.iter("{http://www.w3.org/2000/svg}text"))
    for expected in ("confidence", "accuracy", "ECE", "gap, overconfident", "after calibration"):
        assert expected in words
    assert len(list(tmp_path.iterdir())) == 6


def test_the_gap_is_seen_without_colour(tmp_path, report) -> None:
    """In grey, the hatched gap must differ from the plain bar beneath it and from the page above."""
    path = tmp_path / "diagram.png"
    figure = reliability_diagram(report.bins_before, path=path)
    axes, bins = figure.axes[0], report.bins_before
    with Image.open(path) as image:
        grey = np.asarray(image.convert("L"), dtype=float)
    scale = 200 / figure.dpi

    def patch(b: int, low: float, high: float) -> np.ndarray:
        left, right = bins.edges[b] + 0.01, bins.edges[b + 1] - 0.01
        (x0, y0), (x1, y1) = axes.transData.transform([(left, low), (right, high)]) * scale
        return grey[len(grey) - int(y1) : len(grey) - int(y0), int(x0) : int(x1)]

    b = int(np.nanargmin(np.where(bins.counts > 50, bins.gaps, np.nan)))  # the largest overconfident gap
    middle = bins.accuracy[b] + 0.02, bins.confidence[b] - 0.02
    gap, bar = patch(b, *middle), patch(b, bins.accuracy[b] - 0.1, bins.accuracy[b] - 0.02)
    assert gap.std() > 20  # stripes
    assert bar.std() < 10  # plain
    assert abs(gap.mean() - bar.mean()) > 25


@pytest.mark.parametrize("strategy", ["uniform", "quantile"])
def test_bins_of_a_single_value_can_be_drawn(tmp_path, strategy) -> None:
    bins = reliability_bins([[1.0, 0.0]] * 5, [0, 0, 0, 1, 0], 15, strategy)
    figure = reliability_diagram(bins, path=tmp_path / "certain.png")
    widths = [bar.get_width() for bar in figure.axes[0].patches if not bar.get_hatch()]
    assert len(widths) == 1
    assert widths[0] > 0


def test_bins_of_equal_mass_are_named_and_shown_as_density(cifar10) -> None:
    p = softmax(cifar10.logits)
    bins = reliability_bins(p, cifar10.labels, 10, "quantile")
    interval = bootstrap_interval("adaptive_calibration_error", p, cifar10.labels, n_bins=10, n_resamples=20)
    figure = reliability_diagram(bins, interval=interval)
    assert figure.axes[0].texts[0].get_text().startswith("adaptive ECE")
    area = sum(bar.get_width() * bar.get_height() for bar in figure.axes[1].patches)
    assert area == pytest.approx(1.0)
    assert figure.axes[1].get_ylabel() == "density of\nsamples"


def test_no_global_state_is_touched(report) -> None:
    import matplotlib

    before = dict(matplotlib.rcParams)
    assert isinstance(calibration_diagram(report), Figure)
    assert dict(matplotlib.rcParams) == before


def test_refusals(tmp_path, report) -> None:
    with pytest.raises(ValueError, match=r"must end in \.png, \.svg, \.pdf; got 'plot\.gif'"):
        calibration_diagram(report, tmp_path / "plot.gif")
    with pytest.raises(FileNotFoundError, match="needs an existing folder"):
        calibration_diagram(report, tmp_path / "absent" / "plot.png")
    with pytest.raises(ValueError, match="must belong to these bins' ECE"):
        reliability_diagram(report.bins_before, interval=report.ece_after_interval)
    with pytest.raises(ValueError, match="after_interval needs the bins"):
        reliability_diagram(report.bins_before, after_interval=report.ece_after_interval)
    other = reliability_bins([[0.9, 0.1]], [0], 15, "quantile")
    with pytest.raises(ValueError, match="binned alike; got 'uniform' and 'quantile'"):
        reliability_diagram(report.bins_before, other)
    assert list(tmp_path.iterdir()) == []
