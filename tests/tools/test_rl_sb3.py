"""The policy for RecurrentPPO agrees with sb3-contrib's own, trains with any cell, and is saved and loaded."""

from importlib import import_module

import pytest
import torch

import seqloom
from seqloom.core.errors import MissingPackageError

try:
    import gymnasium
    import numpy as np
    from sb3_contrib import RecurrentPPO
    from sb3_contrib.common.recurrent.policies import RecurrentActorCriticPolicy
    from sb3_contrib.common.recurrent.type_aliases import RNNStates
    from stable_baselines3.common.torch_layers import CombinedExtractor

    from seqloom.tools.rl.sb3 import RecurrentPolicy, copy_weights, export_policy
except ImportError:
    RecurrentPPO = None

needs_sb3 = pytest.mark.skipif(RecurrentPPO is None, reason="needs sb3_contrib: pip install 'seqloom[rl]'")
pytestmark = pytest.mark.filterwarnings("ignore")  # other libraries warn about their own code


def spaces():
    return gymnasium.spaces.Box(-1, 1, (3,), np.float32), gymnasium.spaces.Discrete(2)


def make(kind, **settings):
    torch.manual_seed(0)
    return kind(*spaces(), lambda _: 1e-3, lstm_hidden_size=8, net_arch=[4], **settings)


class Signal(gymnasium.Env if RecurrentPPO else object):
    """Show a signal in the first of four steps; the last action must repeat it."""

    def __init__(self):
        self.observation_space, self.action_space = spaces()

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.time, self.signal = 0, int(self.np_random.integers(2))
        return np.array([2 * self.signal - 1, 0, 0], np.float32), {}

    def step(self, action):
        self.time += 1
        end = self.time == 4
        return np.array([0, 0, self.time == 3], np.float32), float(end and action == self.signal), end, False, {}


@needs_sb3
@pytest.mark.parametrize(
    "settings",
    [{}, {"shared_lstm": True, "enable_critic_lstm": False}, {"enable_critic_lstm": False}],
    ids=["own", "shared", "none"],
)
@pytest.mark.parametrize("layers", [1, 2])
def test_with_the_same_weights_it_gives_what_the_lstm_of_sb3_contrib_gives(settings, layers):
    theirs = make(RecurrentActorCriticPolicy, n_lstm_layers=layers, **settings)
    ours = make(RecurrentPolicy, cell="lstm", n_lstm_layers=layers, **settings)
    copy_weights(theirs, ours)
    starts = torch.zeros(2, 6)
    starts[0, 0] = starts[1, 3] = 1
    x, actions = torch.randn(12, 3), torch.randint(2, (12,))
    state = torch.randn(2, 2, layers, 2, 8)  # (actor or critic, h or c, layer, row, unit)
    their_states = RNNStates((state[0, 0], state[0, 1]), (state[1, 0], state[1, 1]))
    halves = [ours.lstm_actor.pack((s[0], s[1])).unsqueeze(0).chunk(2, -1) for s in state]
    results = []
    for policy, states in ((theirs, their_states), (ours, RNNStates(*halves))):
        outputs = policy.evaluate_actions(x, actions, states, starts.flatten())
        sum(part.sum() for part in outputs).backward()
        results.append((outputs, [p.grad for p in policy.parameters()]))
    for expected, found in zip(*[[*outputs, *gradients] for outputs, gradients in results], strict=True):
        torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-4)


@needs_sb3
def test_training_with_the_same_weights_and_seed_goes_the_same_way():
    settings = dict(n_steps=16, batch_size=16, n_epochs=2, seed=0, device="cpu")
    common = dict(lstm_hidden_size=8)
    theirs = RecurrentPPO("MlpLstmPolicy", Signal(), policy_kwargs=common, **settings)
    ours = RecurrentPPO(RecurrentPolicy, Signal(), policy_kwargs={"cell": "lstm", **common}, **settings)
    copy_weights(theirs.policy, ours.policy)
    for model in (theirs, ours):
        model.set_random_seed(0)
        model.learn(48)
    for expected, found in zip(theirs.policy.parameters(), ours.policy.parameters(), strict=True):
        torch.testing.assert_close(found, expected, atol=1e-4, rtol=1e-3)


@needs_sb3
@pytest.mark.parametrize(("cell", "layers"), [("gru", 1), ("attn_rnn", 2), ("ntm", 1)])
def test_any_cell_trains_and_a_saved_model_acts_the_same(cell, layers, tmp_path):
    settings = {"cell": cell, "lstm_hidden_size": 8, "n_lstm_layers": layers}
    model = RecurrentPPO(RecurrentPolicy, Signal(), n_steps=16, batch_size=16, n_epochs=1, policy_kwargs=settings)
    before = [p.detach().clone() for p in model.policy.lstm_actor.parameters()]
    model.learn(16)
    assert any(not torch.equal(old, new) for old, new in zip(before, model.policy.lstm_actor.parameters(), strict=True))
    model.save(tmp_path / "model.zip")
    model.policy.save(tmp_path / "policy.pt")
    others = (RecurrentPPO.load(tmp_path / "model.zip"), RecurrentPolicy.load(tmp_path / "policy.pt"))
    seen = np.array([1, 0, 0], np.float32)
    for other in others:
        action, state = model.predict(seen, deterministic=True)
        same, again = other.predict(seen, deterministic=True)
        assert action == same
        np.testing.assert_allclose(state, again, atol=1e-6)


@needs_sb3
def test_a_state_of_an_odd_size_is_kept():
    policy = make(RecurrentPolicy, cell="gru")
    policy.lstm_actor = type(policy.lstm_actor)(seqloom.GRU(3, 5, batch_first=True))
    x, zeros = torch.randn(4, 3), torch.zeros(1, 1, 3)
    whole, _ = policy.lstm_actor.run(x, (zeros, zeros), torch.tensor([1.0, 0, 0, 0]))
    _, states = policy.lstm_actor.run(x[:2], (zeros, zeros), torch.tensor([1.0, 0]))
    rest, _ = policy.lstm_actor.run(x[2:], states, torch.zeros(2))
    torch.testing.assert_close(rest, whole[2:], atol=1e-6, rtol=1e-5)


@needs_sb3
@pytest.mark.slow
@pytest.mark.parametrize("cell", ["gru", "lstm"])
def test_an_exported_policy_chooses_the_actions_that_predict_chooses(cell, tmp_path):
    onnxruntime = pytest.importorskip("onnxruntime", reason="needs onnxruntime: pip install 'seqloom[onnx]'")
    settings = {"cell": cell, "lstm_hidden_size": 8}
    model = RecurrentPPO(RecurrentPolicy, Signal(), n_steps=16, batch_size=16, n_epochs=1, policy_kwargs=settings)
    model.learn(32)
    export_policy(model.policy, tmp_path / "policy.onnx")
    session = onnxruntime.InferenceSession(tmp_path / "policy.onnx", providers=["CPUExecutionProvider"])
    other, state = np.zeros((3, model.policy.lstm_actor.state_size), np.float32), None
    for step in range(6):
        seen = np.random.default_rng(step).standard_normal((3, 3)).astype(np.float32)
        starts = np.arange(3) == step - 2 if step else np.ones(3, bool)
        action, state = model.predict(seen, state, starts, deterministic=True)
        scores, other = session.run(None, {"seen": seen, "state": other, "starts": starts.astype(np.float32)})
        np.testing.assert_array_equal(scores.argmax(-1), action)
        h, c = state
        np.testing.assert_allclose(other, np.concatenate([h[0], c[0]], -1), atol=1e-5)


@needs_sb3
def test_a_policy_that_reads_dictionaries_is_not_exported(tmp_path):
    seen = gymnasium.spaces.Dict({"a": spaces()[0]})
    policy = RecurrentPolicy(
        seen, spaces()[1], lambda _: 1e-3, lstm_hidden_size=8, features_extractor_class=CombinedExtractor
    )
    with pytest.raises(ValueError, match="only observations of one array can be exported"):
        export_policy(policy, tmp_path / "policy.onnx")


@needs_sb3
def test_an_unknown_cell_is_named():
    with pytest.raises(ValueError, match="grru"):
        make(RecurrentPolicy, cell="grru")


@pytest.mark.skipif(RecurrentPPO is not None, reason="sb3_contrib is installed")
def test_without_sb3_contrib_the_error_says_how_to_install_it():
    with pytest.raises(MissingPackageError, match=r"seqloom.tools.rl.sb3 needs sb3_contrib; .*'seqloom\[rl\]'"):
        import_module("seqloom.tools.rl.sb3")
