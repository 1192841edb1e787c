"""Every dense backend takes the steps of plain PyTorch and comes back from what it gives to a checkpoint."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from satrap.dense import Workers
from tests.dense.backend_cases import BAD, CLIP, MESHES, OPTIMIZERS, RATES, answers, network, samples
from tests.dense.processes import answers as in_processes

BACKENDS = [
    pytest.param(kind, marks=pytest.mark.cluster if kind in MESHES and kind != "data parallel" else ())
    for kind in ("one device", "remote", *MESHES)
]


@pytest.fixture(scope="module", params=BACKENDS)
def found(request: pytest.FixtureRequest) -> list[dict[str, Any]]:
    """What each process found."""
    if request.param in MESHES:
        return in_processes("tests.dense.backend_cases", MESHES[request.param].size, request.param)
    return [answers(request.param, Workers())]


class Plain:
    """The oracle: torch alone, with the samples of all processes in one batch."""

    def __init__(self, optimizer: str, *, bad: bool = False, clip_norm: float | None = None) -> None:
        self.model, self.losses = network(0), list[float]()
        self.optimizer = OPTIMIZERS[optimizer](list(self.model.parameters()))
        [group] = self.optimizer.param_groups
        base = group["lr"]
        for step, rate in enumerate(RATES):
            x, y = samples(step)
            loss = nn.functional.mse_loss(self.model(x), y)
            self.losses.append(loss.item())
            if bad and step == BAD:
                continue
            self.optimizer.zero_grad()
            loss.backward()
            if clip_norm is not None:
                nn.utils.clip_grad_norm_(self.model.parameters(), clip_norm)
            group["lr"] = base * rate
            self.optimizer.step()
        group["lr"] = base

    @property
    def weights(self) -> Any:
        return near(nn.utils.parameters_to_vector(self.model.parameters()).tolist())


def near(values: list[float]) -> Any:
    return pytest.approx(values, abs=2e-6)


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_steps_are_those_of_torch_with_the_samples_of_all(
    found: list[dict[str, Any]], optimizer: str
) -> None:
    plain = Plain(optimizer)
    for each in found:
        assert each[f"trained {optimizer}"]["weights"] == plain.weights
        assert each[f"trained {optimizer}"]["losses"] == near(plain.losses)
        assert each[f"trained {optimizer}"] == found[0][f"trained {optimizer}"]


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_the_parts_of_all_processes_are_the_state_of_torch(
    found: list[dict[str, Any]], optimizer: str, request: pytest.FixtureRequest
) -> None:
    plain = Plain(optimizer)
    state = plain.optimizer.state_dict()["state"]
    remote = "remote" in request.node.name  # the store has the optimizer's state
    for each in found:
        weights, kept = (each[f"state {optimizer}"][name] for name in ("weights", "optimizer"))
        expected = plain.model.state_dict()
        assert weights.keys() == expected.keys()
        for name, tensor in expected.items():
            torch.testing.assert_close(torch.tensor(weights[name]), tensor, atol=2e-6, rtol=0)
        names = [] if remote else [f"{i} {key}" for i, entry in state.items() for key in entry]
        assert sorted(kept) == sorted(names)
        for name in names:
            number, key = name.split()
            value = torch.tensor(kept[name])
            torch.testing.assert_close(value, torch.as_tensor(state[int(number)][key]), atol=2e-6, rtol=0)


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_another_backend_goes_on_from_a_state_to_the_bit(found: list[dict[str, Any]], optimizer: str) -> None:
    for each in found:
        assert each[f"resumed {optimizer}"] == each[f"state {optimizer}"]


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_giving_its_state_changes_nothing(found: list[dict[str, Any]], optimizer: str) -> None:
    for each in found:
        assert each[f"went on {optimizer}"] == each[f"trained {optimizer}"]["weights"]


def test_a_loss_of_one_that_is_not_finite_changes_no_weight(found: list[dict[str, Any]]) -> None:
    plain = Plain("momentum", bad=True)
    for each in found:
        assert [accepted for accepted, _, _ in each["refused"]["said"]] == [
            i != BAD for i in range(len(RATES))
        ]
        assert each["refused"]["weights"] == plain.weights


def test_clipping_is_by_the_norm_of_the_whole_gradient(found: list[dict[str, Any]]) -> None:
    plain = Plain("momentum", clip_norm=CLIP)
    for each in found:
        assert each["clipped"]["weights"] == plain.weights
        assert each["clipped"]["weights"] != each["trained momentum"]["weights"]


def test_all_learn_that_one_was_asked_to_stop(found: list[dict[str, Any]]) -> None:
    for each in found:
        assert [stop for _, _, stop in each["stopped"]["said"]] == [i == BAD for i in range(len(RATES))]


def test_each_process_gets_its_own_buffers_back(found: list[dict[str, Any]]) -> None:
    assert [each["own"] for each in found] == [[1.0 + rank] * 4 for rank in range(len(found))]
