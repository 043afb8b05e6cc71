"""The palette: told apart with every common kind of colour blindness, and seen on a white page as on a dark one."""

import itertools
import json
import re

import numpy as np
import pytest

from distill_core import charts
from distill_core.charts import style

PAGES = ("#ffffff", "#181c1a")
"""marimo's light and dark backgrounds."""
# Machado, Oliveira, Fernandes 2009, "A physiologically-based model for simulation of color vision deficiency", table 1, severity 1.0
SEEN = {
    "by most": np.eye(3),
    "protanopia": [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]],
    "deuteranopia": [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.011820, 0.042940, 0.968881]],
    "tritanopia": [[1.255528, -0.076749, -0.178779], [-0.078411, 0.930809, 0.147602], [0.004733, 0.691367, 0.303900]],
}
TOLD_APART = 12.0
"""CIE76 distance; about 2 is just noticeable side by side."""
LINES = {
    "loss": charts.loss_chart(),
    "memory": charts.memory_chart(predicted_gib=1.0, limit_gib=2.0),
    "agreement": charts.agreement_chart(),
    "held-out": charts.heldout_chart(runs=["a", "b", "c", "d"], teacher_bits_per_byte=1.0),
    "gradient": charts.gradient_chart(),
    "speed": charts.speed_chart(),
    "kept mass": charts.kept_mass_chart([{"temperature": 1.0, "kept_mass": 1.0}], temperature=1.0),
}


def linear(color):
    """sRGB, IEC 61966-2-1."""
    values = np.array([int(color[i : i + 2], 16) / 255 for i in (1, 3, 5)])
    return np.where(values <= 0.04045, values / 12.92, ((values + 0.055) / 1.055) ** 2.4)


def luminance(color):
    return float(linear(color) @ [0.2126, 0.7152, 0.0722])


def contrast(one, other):
    """WCAG 2.2, "contrast ratio"."""
    low, high = sorted((luminance(one), luminance(other)))
    return (high + 0.05) / (low + 0.05)


def lab(rgb):
    """CIE 1976 L*a*b* under D65."""
    x, y, z = (
        np.array([[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]])
        @ np.clip(rgb, 0, 1)
        / [0.95047, 1, 1.08883]
    )
    f = [t ** (1 / 3) if t > 0.008856 else 7.787 * t + 16 / 116 for t in (x, y, z)]
    return np.array([116 * f[1] - 16, 500 * (f[0] - f[1]), 200 * (f[1] - f[2])])


def distance(one, other, seen):
    return float(np.linalg.norm(lab(SEEN[seen] @ linear(one)) - lab(SEEN[seen] @ linear(other))))


def colors_of(chart):
    return sorted(set(re.findall(r"#[0-9a-f]{6}", json.dumps(chart.to_dict()))))


def test_contrast_by_hand():
    assert contrast("#ffffff", "#000000") == pytest.approx(21)
    assert contrast("#777777", "#ffffff") == pytest.approx(4.48, abs=0.01), "the known grey that just fails for text"


@pytest.mark.parametrize("name", LINES)
def test_every_line_is_seen_on_both_pages(name):
    """3:1 is what WCAG 2.2, 1.4.11, asks of a graphical object."""
    for color in colors_of(LINES[name]):
        assert min(contrast(color, page) for page in PAGES) >= 3.0, color


@pytest.mark.parametrize("seen", SEEN)
@pytest.mark.parametrize("name", LINES)
def test_lines_of_one_chart_are_told_apart(name, seen):
    for one, other in itertools.combinations(colors_of(LINES[name]), 2):
        assert distance(one, other, seen) >= TOLD_APART, f"{one} and {other}"


@pytest.mark.parametrize("seen", SEEN)
def test_neighbours_in_a_bar_are_told_apart(seen):
    for one, other in itertools.pairwise(charts.PART_COLORS.values()):
        assert distance(one, other, seen) >= TOLD_APART, f"{one} and {other}"


def test_a_bad_palette_is_caught():
    """Red and green of one lightness: the pair that this test exists for."""
    assert distance("#c05050", "#708030", "deuteranopia") < TOLD_APART < distance("#c05050", "#708030", "by most")
    assert style.ORANGE not in {color for chart in LINES.values() for color in colors_of(chart)}
