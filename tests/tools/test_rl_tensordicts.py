"""The module for TorchRL acts step by step and learns from whole rollouts with one result."""

import pytest
import torch

import seqloom
from seqloom.core.errors import InputError

tensordict = pytest.importorskip("tensordict", reason="needs tensordict: pip install 'seqloom[torchrl]'")
pytestmark = pytest.mark.filterwarnings("ignore")  # other libraries warn about their own code


def make(cell="gru"):
    from seqloom.tools.rl.tensordicts import RecurrentModule

    torch.manual_seed(0)
    return RecurrentModule(seqloom.Recurrent(cell, 3, 8, batch_first=True))


@pytest.mark.parametrize("cell", ["gru", "lstm", "attn_rnn"])
def test_steps_and_a_rollout_give_the_same(cell):
    module, x = make(cell), torch.randn(2, 6, 3)
    starts = torch.zeros(2, 6, 1, dtype=torch.bool)
    starts[:, 0] = starts[0, 4] = True
    state, outputs, states = torch.zeros(2, module.memory.state_size), [], []
    for time in range(6):
        values = {"observation": x[:, time], "recurrent_state": state, "is_init": starts[:, time]}
        step = module(tensordict.TensorDict(values, batch_size=[2]))
        states.append(state)
        state = step["next", "recurrent_state"]
        outputs.append(step["embed"])
    values = {"observation": x, "recurrent_state": torch.stack(states, 1), "is_init": starts}
    rollout = module(tensordict.TensorDict(values, batch_size=[2, 6]))
    torch.testing.assert_close(rollout["embed"], torch.stack(outputs, 1), atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(rollout["next", "recurrent_state"][:, -1], state, atol=1e-5, rtol=1e-5)


def test_it_is_a_part_of_a_sequence_of_modules_and_trains():
    from tensordict.nn import TensorDictModule, TensorDictSequential

    head = TensorDictModule(torch.nn.Linear(8, 2), in_keys=["embed"], out_keys=["logits"])
    policy = TensorDictSequential(make(), head)
    result = policy(tensordict.TensorDict({"observation": torch.randn(2, 5, 3)}, batch_size=[2, 5]))
    result["logits"].sum().backward()
    assert result["logits"].shape == (2, 5, 2)
    assert all(parameter.grad is not None for parameter in policy.parameters())


def test_with_the_same_weights_it_gives_what_the_gru_of_torchrl_gives():
    modules = pytest.importorskip("torchrl.modules", reason="needs torchrl: pip install 'seqloom[torchrl]'")
    theirs = modules.GRUModule(
        input_size=3, hidden_size=8, in_key="observation", out_key="embed", default_recurrent_mode=True
    )
    ours = make()
    ours.memory.layer.load_state_dict(theirs.gru.state_dict())
    starts = torch.zeros(2, 6, 1, dtype=torch.bool)
    starts[:, 0] = starts[1, 3] = True
    values = {"observation": torch.randn(2, 6, 3), "is_init": starts}
    expected = theirs(tensordict.TensorDict(values, batch_size=[2, 6]))["embed"]
    found = ours(tensordict.TensorDict(values, batch_size=[2, 6]))["embed"]
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("cell", ["gru", "lstm"])
def test_an_environment_of_torchrl_is_played_and_its_rollout_read_again(cell):
    pytest.importorskip("gymnasium", reason="needs gymnasium: pip install 'seqloom[rl]'")
    envs = pytest.importorskip("torchrl.envs", reason="needs torchrl: pip install 'seqloom[torchrl]'")
    from tensordict.nn import TensorDictModule, TensorDictSequential

    from seqloom.tools.rl.tensordicts import RecurrentModule

    torch.manual_seed(0)
    memory = RecurrentModule(seqloom.Recurrent(cell, 4, 8, batch_first=True))
    choose = TensorDictModule(lambda y: torch.nn.functional.one_hot(y[..., :2].argmax(-1), 2), ["embed"], ["action"])
    steps = envs.Compose(envs.InitTracker(), memory.make_tensordict_primer())
    env = envs.TransformedEnv(envs.GymEnv("CartPole-v1"), steps)
    env.set_seed(0)
    rollout = env.rollout(60, TensorDictSequential(memory, choose), break_when_any_done=False)
    assert rollout["is_init"].sum() > 1  # several episodes
    goes_on = ~rollout["is_init"][1:, 0]
    before, after = rollout["next", "recurrent_state"][:-1], rollout["recurrent_state"][1:]
    torch.testing.assert_close(before[goes_on], after[goes_on])
    assert after[goes_on].any()
    again = memory(rollout.clone())["embed"]
    torch.testing.assert_close(again, rollout["embed"], atol=1e-5, rtol=1e-5)


def test_an_observation_of_another_shape_is_named():
    with pytest.raises(InputError, match=r"observation must be \(B, D\) for a step or .*, got \(2, 1, 5, 3\)"):
        make()(tensordict.TensorDict({"observation": torch.randn(2, 1, 5, 3)}, batch_size=[2]))
