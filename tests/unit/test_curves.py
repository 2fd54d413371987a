"""The curves: policies are what their names say, families that nothing is evicted from keep full KV's answers, pictures are whole."""

import json
import math

import pytest

from benchmarks import accuracy, language_model, variants
from benchmarks.curves import __main__ as command
from benchmarks.curves import figure, reasoner, smollm2
from benchmarks.curves.policies import FULL, MEANING, POLICIES, config_of, flags_of
from benchmarks.language.settings import name_of
from benchmarks.reasoner import tasks
from benchmarks.settings import make_settings
from zipage_sglang.config import PRESETS, ZipageConfig


@pytest.mark.parametrize("policy", POLICIES)
def test_both_models_get_the_same_policy(policy):
    """The flags of the reasoner's runs say what SmolLM2's config says."""
    (setting,) = accuracy.settings_of(accuracy._arguments([*flags_of(policy), "--budgets", "512", "--block", "128", "--no-full"]))
    assert setting.options.pop("enable_zipage")
    options = {{"zipage_lambda": "lam"}.get(name, name.removeprefix("zipage_")): value for name, value in setting.options.items()}
    assert ZipageConfig(**options) == config_of(policy, 512)


def test_policies_differ_and_are_what_they_are_called():
    assert len({config_of(policy, 512) for policy in POLICIES}) == len(POLICIES)
    assert set(figure.STYLES) == set(POLICIES) == set(MEANING) - {FULL}
    sinks = config_of("sinks+recent", 512)
    assert (sinks.policy, sinks.forced_sinks, sinks.start(99)) == ("recent", 4, 0)
    assert config_of("recent", 512).start(99) == 99
    assert config_of("global", 512).redundancy == "none" and config_of("global", 512).lam == 1.0
    paper = config_of("paper", 512)
    others = ("budget", "block", "spread", "admit_every")  # the last two are of when, not of what
    assert {k: getattr(paper, k) for k in PRESETS["paper"] if k not in others} == {
        k: v for k, v in PRESETS["paper"].items() if k not in others
    }
    assert flags_of(FULL) == ["--policies", "full"]
    assert [s.name for s in make_settings(["full"], [256])] == ["full KV"]


def test_what_compresses_nothing_is_not_run(tmp_path):
    """200 tokens of reasoning at K = 224 (first compression from 321 tokens): only with the prompts they are more, and not in every family."""
    args = command.arguments(["--level", "200", "--n", "8", "--budgets", "64", "224", "--policies", "recent", "sinks+recent"])
    chosen = reasoner.variants_of(args)
    assert list(chosen) == [(FULL, None), ("recent", 64), ("sinks+recent", 64), ("sinks+recent", 224)]
    assert chosen["recent", 64].families == list(tasks.FAMILIES)
    assert chosen["sinks+recent", 224].families == ["ram", "chain"]
    run = variants.command_of(chosen["sinks+recent", 224], args)
    assert "--no-full" in run and run[-4:] == ["--policies", "recent", "--prefix", "compress"]
    assert "--no-full" not in variants.command_of(chosen[FULL, None], args)


def write(args, variant, right):
    """A run of the accuracy benchmark, with `right` of n right."""
    families = variant.families or list(tasks.FAMILIES)
    cells = [dict(family=f, right=right, n=args.n, compressions_per_request=3.5) for f in families]
    options = dict(budgets=[variant.budget], levels=[args.level], knobs=args.regime, n=args.n, families=families)
    (args.folder / f"{variant.name}.json").write_text(json.dumps(dict(cells=cells, options=options, git_commit="abc", device="a GPU")))


def test_reasoner_tables_and_picture(tmp_path, capsys):
    pytest.importorskip("matplotlib")
    out = tmp_path / "out.json"
    given = ["--level", "2000", "--n", "4", "--budgets", "512", "1600", "2048", "--policies", "zipage", "recent", "--folder", str(tmp_path), "--out", str(out)]
    args = command.arguments(given)
    for (policy, _), variant in reasoner.variants_of(args).items():
        write(args, variant, {FULL: 4, "zipage": 3, "recent": 1}[policy])
    assert command.main(given) == 0
    record = json.loads(out.read_text())
    value = {(p["policy"], p["budget"], p["panel"]): p for p in record["points"]}
    assert value["zipage", 512, "mean"]["value"] == 75 and value["zipage", 512, "mean"]["n"] == 16
    assert value["recent", 512, "chain"]["value"] == 25
    assert value["recent", 512, "chain"]["low"] < 25 < value["recent", 512, "chain"]["high"]
    assert value["recent", 2048, "mean"]["value"] == 100
    # Chains of 1,629 tokens and 32 more are not compressed at 1,697: full KV's answers.
    assert value["recent", 1600, "chain"]["value"] == 100 and value["recent", 1600, "chain"]["compressions"] == 0
    assert value["recent", 1600, "mean"]["value"] == pytest.approx(100 * (3 * 1 + 4) / 16)
    assert (record["complete"], record["origins"]) == (True, ["abc on a GPU"]) and str(tmp_path) not in json.dumps(record["options"])
    printed, page, picture = capsys.readouterr().out, out.with_suffix(".md").read_text(), out.with_suffix(".svg").read_text()
    for text in ("mean", *tasks.FAMILIES):
        assert text in printed and f"## {text}" in page and f">{text}<" in picture
    assert "75 % (" in page and ">zipage<" in picture and ">full KV<" in picture


def test_a_failed_run_leaves_a_gap(tmp_path, monkeypatch):
    given = ["--n", "4", "--budgets", "512", "--policies", "zipage", "recent", "--folder", str(tmp_path)]
    args = command.arguments(given)
    chosen = reasoner.variants_of(args)
    for key in ((FULL, None), ("zipage", 512)):
        write(args, chosen[key], 2)
    monkeypatch.setattr(variants, "command_of", lambda *_: ["false"])
    curves = reasoner.measure(args)
    assert not curves.complete and {p.policy for p in curves.points} == {FULL, "zipage"}
    assert command.main(given) == 1


def test_a_run_with_other_families_is_refused(tmp_path):
    args = command.arguments(["--n", "4", "--budgets", "1600", "--policies", "recent", "--folder", str(tmp_path)])
    for variant in reasoner.variants_of(args).values():
        write(args, variants.Variant(variant.name, variant.title, [], variant.budget), 1)
    with pytest.raises(SystemExit, match="families"):
        reasoner.measure(args)


def test_smollm2_from_what_is_known(tmp_path, monkeypatch):
    pytest.importorskip("matplotlib")
    jsonl, out = tmp_path / "records.jsonl", tmp_path / "out.json"
    condition = language_model.condition(language_model.arguments([]))
    for policy, losses in (("recent", (0.1, 0.3)), ("zipage", (0.0, 0.1)), ("paper", (0.5, 0.5))):
        for document, loss in enumerate(losses):
            record = dict(condition=condition, document=str(document), kind="text", setting=name_of(config_of(policy, 512)), budget=512, nll=2 + loss, nll_full=2.0, compressions=2)
            with jsonl.open("a") as file:
                file.write(json.dumps(record) + "\n")
    plain = language_model.arguments
    monkeypatch.setattr(language_model, "arguments", lambda argv: plain([*argv, "--jsonl", str(jsonl)]))
    given = ["--model", "smollm2", "--known", "--budgets", "512", "1024", "--policies", "recent", "zipage", "--out", str(out)]
    assert command.main(given) == 0
    than_full, than_zipage = smollm2.PANELS
    every = json.loads(out.read_text())["points"]
    points = {p["policy"]: p for p in every if p["panel"] == than_full}
    assert set(points) == {FULL, "recent", "zipage"}
    assert points["recent"]["value"] == pytest.approx(0.2) and points["zipage"]["value"] == pytest.approx(0.05)
    assert points["recent"]["high"] == pytest.approx(0.2 + 12.706 * 0.1 * math.sqrt(2) / math.sqrt(2))
    paired = {p["policy"]: p for p in every if p["panel"] == than_zipage}
    assert paired["zipage"]["value"] == 0 and paired["recent"]["value"] == pytest.approx(0.15)
    assert paired["recent"]["high"] == pytest.approx(0.15 + 12.706 * 0.05)
    assert points["recent"]["n"] == 2 and "n 2" in out.with_suffix(".md").read_text()


def test_fewer_documents_for_one_setting_are_said():
    records = [dict(budget=512, setting="a"), dict(budget=512, setting="b"), dict(budget=512, setting="b"), dict(budget=1024, setting="c")]
    assert not smollm2.as_many_everywhere(records)
    assert smollm2.as_many_everywhere(records[1:])


def test_one_setting_under_two_names():
    """At K = 256 the default's reserve is half of the budget, too."""
    records = [dict(document=d, kind="text", setting="s", budget=256, nll=2.1 + n / 10, nll_full=2.0, compressions=2) for n, d in enumerate("ab")]
    points = smollm2.points(records, {("zipage", 256): "s", ("zipage-half", 256): "s"})
    assert [(p.policy, p.panel, round(p.value, 9)) for p in points if p.policy != FULL] == [
        (policy, panel, value) for policy in ("zipage", "zipage-half") for panel, value in zip(smollm2.PANELS, (0.15, 0.0))
    ]
