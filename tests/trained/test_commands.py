"""Numbers that a command of the trained model cannot mean are refused before anything runs."""

import sys

import pytest

from tools.tiny_video.training import Clock

from . import ablations, suite


@pytest.mark.parametrize("command", (suite, ablations))
@pytest.mark.parametrize("arguments", (["--clips", "0"], ["--latent-frames", "-1"], ["--clips", "many"]))
def test_a_number_below_one_is_named(command, arguments, monkeypatch, capsys, tmp_path):
    monkeypatch.setattr(sys, "argv", ["command", "--out", str(tmp_path), *arguments])
    with pytest.raises(SystemExit):
        command.main()
    said = capsys.readouterr().err
    assert f"argument {arguments[0]}: " in said and arguments[1] in said


@pytest.mark.parametrize("seconds, steps", ((110, 0), (110, -1), (0, None)))
def test_a_training_that_would_not_end_does_not_begin(seconds, steps, tmp_path):
    with pytest.raises(ValueError, match="must be positive"):
        Clock(tmp_path / "out", seconds, steps)
    assert not (tmp_path / "out").exists()
