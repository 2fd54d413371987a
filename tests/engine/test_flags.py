"""The flags as a user meets them: defaults, presets, one-line errors, refusals, and a contract that does not hold."""

import dataclasses

import pytest
from harness import MODEL


@pytest.fixture(scope="module", autouse=True)
def plugins():
    from sglang.srt.plugins import load_plugins

    load_plugins()


def parse(*flags):
    from sglang.srt.server_args import prepare_server_args

    return prepare_server_args(["--model-path", str(MODEL), "--device", "cpu", *flags])


def started(*flags):
    args = parse("--enable-zipage", *flags)
    args.check_server_args()
    return args


def error(capsys, *flags):
    with pytest.raises(SystemExit) as stop:
        started(*flags)
    return stop.value.code if isinstance(stop.value.code, str) else capsys.readouterr().err


def test_defaults_with_the_flag_alone():
    args = started()
    config = args.zipage_config()
    assert (config.budget, config.block, config.window, config.policy) == (2048, 256, 16, "zipage")
    assert args.attention_backend == "torch_native"
    assert not parse().enable_zipage


def test_preset_and_single_flags_that_win_over_it():
    assert started("--zipage-preset", "paper").zipage_config().recency == 0.0
    config = started("--zipage-preset", "paper", "--zipage-alpha", "0.5", "--zipage-budget", "1024").zipage_config()
    assert (config.alpha, config.budget, config.lam, config.recency) == (0.5, 1024, 0.2, 0.0)


@pytest.mark.parametrize("flags, words", [
    (("--zipage-window", "999"), "--zipage-window: must be between 1 and --zipage-block"),
    (("--zipage-budget", "8"), "--zipage-budget: 8 cannot hold"),
    (("--zipage-alpha", "1.5"), "--zipage-alpha"),
    (("--zipage-lambda", "-1"), "--zipage-lambda"),
    (("--zipage-tau", "0"), "--zipage-tau"),
    (("--zipage-recency", "2"), "--zipage-recency"),
    (("--zipage-policy", "best"), "argument --zipage-policy: invalid choice"),
    (("--page-size", "48", "--chunked-prefill-size", "480"), "--zipage-budget 2048 is not a multiple of --page-size 48"),
    (("--page-size", "64", "--zipage-block", "96"), "--zipage-block 96 is not a multiple of --page-size 64"),
    (("--enable-mixed-chunk", "--chunked-prefill-size", "64"), "--enable-mixed-chunk"),
    (("--attention-backend", "fa3"), "--attention-backend fa3"),
    (("--zipage-trace", "/dev/null/traces"), "--zipage-trace /dev/null/traces: cannot write there"),
    (("--kv-cache-dtype", "fp8_e4m3"), "--kv-cache-dtype fp8_e4m3"),
    (("--enable-streaming-session",), "--enable-streaming-session"),
])
def test_wrong_flags_end_with_one_line_that_names_the_flag(capsys, flags, words):
    assert words in error(capsys, *flags)


def test_a_zipage_flag_without_the_switch_is_not_ignored():
    with pytest.raises(SystemExit, match="--zipage-budget does nothing without --enable-zipage"):
        parse("--zipage-budget", "512")


def test_environment_defaults(monkeypatch):
    monkeypatch.setenv("ZIPAGE_BUDGET", "1024")
    monkeypatch.setenv("ZIPAGE_LAMBDA", "0.4")
    config = started("--zipage-lambda", "0.6").zipage_config()
    assert (config.budget, config.lam) == (1024, 0.6)
    monkeypatch.setenv("ZIPAGE_BUDGET", "lots")
    with pytest.raises(SystemExit, match="ZIPAGE_BUDGET: 'lots'"):
        started()


def test_engine_arguments_raise_value_error():
    from sglang.srt.entrypoints.engine import Engine

    with pytest.raises(ValueError, match="--zipage-window"):
        Engine.server_args_class(model_path=str(MODEL), device="cpu", enable_zipage=True, zipage_window=0)


def test_an_unknown_sglang_is_refused_with_the_differences(monkeypatch):
    from zipage_patches import contract, install

    broken = dataclasses.replace(contract.STAGE2[2], params=("self", "a_parameter_of_tomorrow"))
    gone = contract.Target("managers.scheduler.Scheduler.renamed_method", "AROUND", ("self",))
    monkeypatch.setattr(contract, "STAGE2", (broken, gone))
    with pytest.raises(SystemExit) as stop:
        started()
    message = str(stop.value.code)
    assert "a_parameter_of_tomorrow" in message and "renamed_method: not found" in message
    assert all(release in message for release in contract.RELEASES)
    with pytest.raises(install.ContractError):
        install.install_runtime_hooks()


def test_a_hook_that_was_not_applied_is_refused(monkeypatch):
    from sglang.srt.plugins.hook_registry import HookRegistry

    monkeypatch.setattr(HookRegistry, "_patched", HookRegistry._patched - {"sglang.srt.managers.scheduler.Scheduler.__init__"})
    with pytest.raises(SystemExit, match="hook not applied"):
        started()


def test_arguments_restored_in_another_process_carry_their_hooks():
    import pickle

    from sglang.srt.plugins.hook_registry import HookRegistry

    args = pickle.loads(pickle.dumps(started("--zipage-budget", "512")))
    assert args.zipage_config().budget == 512
    assert "sglang.srt.managers.scheduler.Scheduler.__init__" in HookRegistry._patched
