"""The pages: links and anchors lead somewhere, files and messages that they name exist, examples run, tables are the code's."""

import ast
import copy
import re
import sys
import types
from pathlib import Path

import pytest
import torch
from kernel_cases import MIXED, Request, make_case
from test_pipeline import buffers_of
from test_policies import naive_features, rows

from zipage_sglang.config import ZipageConfig
from zipage_sglang.pipeline import compress

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
PAGES = [*sorted(DOCS.glob("*.md")), ROOT / "README.md", ROOT / "CHANGELOG.md", ROOT / "benchmarks/results/README.md"]
sys.path.insert(0, str(DOCS))
import generate  # noqa: E402


def prose(page: Path) -> str:
    """The page without code blocks."""
    return re.sub(r"^( *)```.*?^ *```", "", page.read_text(), flags=re.DOTALL | re.MULTILINE)


def anchors(page: Path) -> set[str]:
    """Slugs of a page's headings, as Python-Markdown and GitHub make them."""
    titles = re.findall(r"^#+ (.+)$", prose(page), re.MULTILINE)
    return {re.sub(r"[\s]+", "-", re.sub(r"[^\w\s-]", "", title).strip().lower()) for title in titles}


@pytest.mark.parametrize("page", PAGES, ids=lambda p: str(p.relative_to(ROOT)))
def test_links_lead_somewhere(page):
    for text, target in re.findall(r"\[([^\]]*)\]\(([^)\s]+)\)", prose(page)):
        if re.match(r"https?://", target):
            continue
        path, _, anchor = target.partition("#")
        file = (page.parent / path).resolve() if path else page
        assert file.exists(), f"{page.name}: [{text}]({target})"
        assert not anchor or anchor in anchors(file), f"{page.name}: no heading for [{text}]({target})"
        if page.parent == DOCS:  # the website holds nothing else
            assert file.is_relative_to(DOCS), f"{page.name}: [{text}]({target}) leaves docs/"


@pytest.mark.parametrize("page", PAGES, ids=lambda p: str(p.relative_to(ROOT)))
def test_files_that_are_named_exist(page):
    own = r"`((?:benchmarks|docs|kernels|patches|tests|zipage_sglang)/[\w./-]*)(?:::\w+)?`"
    missing = [name for name in re.findall(own, prose(page)) if not (ROOT / name).exists()]
    assert [name for name in missing if name != "zipage_sglang/policies/fading.py"] == []  # the example's


def test_every_page_is_reached_from_the_first():
    seen, queue = set(), [DOCS / "index.md"]
    while queue:
        page = queue.pop()
        if page not in seen:
            seen.add(page)
            queue += [DOCS / t for t in re.findall(r"\]\(([\w-]+\.md)", page.read_text()) if (DOCS / t).exists()]
    known = {"index", "quickstart", "sizing", "how-it-works", "flags", "tuning", "limits", "troubleshooting", "design", "contributing",
             "accuracy", "compatibility", "scheduling", "bug-recipes"}
    assert {page.stem for page in seen} >= known


def test_it_says_first_that_it_is_lossy():
    assert (DOCS / "index.md").read_text().split("\n\n")[1].startswith("**It is lossy.**")


def templates() -> list[str]:
    """Every text of the code, `…` where something is filled in."""
    found = []
    for folder in ("zipage_sglang", "patches", "kernels"):
        for path in (ROOT / folder).rglob("*.py"):
            for node in ast.walk(ast.parse(path.read_text())):
                if isinstance(node, ast.JoinedStr):
                    found.append("".join(v.value if isinstance(v, ast.Constant) else "…" for v in node.values))
                elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                    found.append(re.sub(r"%[.\d]*[sdf]", "…", node.value))
    return found


def messages() -> list[str]:
    text = (DOCS / "troubleshooting.md").read_text()
    return [m for m in re.findall(r"^\| `([^`]+)` \|", text, re.MULTILINE)]


def test_messages_are_those_of_the_code():
    texts = templates()
    assert len(messages()) >= 15
    for message in messages():
        assert any(message in text for text in texts), message


def refuse_reasons() -> set[str]:
    """`what` of each model refusal in patches/refusals.py, with the words that limits.md uses for it."""
    tree = ast.parse((ROOT / "patches/refusals.py").read_text())
    (check,) = [n for n in tree.body if isinstance(n, ast.FunctionDef) and n.name == "check_model"]
    pairs = next(n for n in ast.walk(check) if isinstance(n, ast.For)).iter
    return {ast.literal_eval(pair)[1] for pair in pairs.elts}


def test_limits_name_the_models_that_are_refused():
    text = prose(DOCS / "limits.md").replace("\n", " ")
    for what in refuse_reasons():  # "hybrid sliding-window models"
        assert what.removesuffix(" models") in text, what
    assert "MLA" in text and "hybrid SSM" in text


@pytest.mark.parametrize("name", [n for n in generate.PARTS if n != "flags"])
def test_generated_parts_are_up_to_date(name):
    assert generate.part(name) == generate.PARTS[name][1](), "run python docs/generate.py"


@pytest.mark.parametrize("name", generate.FIGURES)
def test_figures_are_up_to_date(name):
    assert (DOCS / name).read_text() == generate.FIGURES[name](), "run python docs/generate.py"


def test_the_policy_of_the_contributor_guide_works():
    """Its code runs as it stands there, and keeps what its formula says."""
    text = (DOCS / "contributing.md").read_text()
    (code,) = re.findall(r"<!-- test: policy -->\n```python\n(.*?)```", text, re.DOTALL)
    assert len(code.splitlines()) <= 30
    module = types.ModuleType("fading")
    sys.modules["fading"] = module  # dataclasses looks its module up
    exec(compile(code, "contributing.md", "exec"), vars(module))
    policy = module.FadingPolicy(half_life=3.0)

    case = make_case(tuple(Request(**(vars(request) | dict(keep=8))) for request in MIXED), seed=5)
    config, before = ZipageConfig(budget=8, block=5, window=3, policy="attention", recency=0.0), copy.deepcopy(case)
    result = compress(case.batch, buffers_of(case), policy, config)
    for r, layer, head, n in rows(before):
        attention, _, positions, _ = naive_features(before, r, layer, head)
        newest = max(positions)
        scores = [a * 2 ** ((p - newest) / 3.0) if p <= newest - 3 else float("inf") for a, p in zip(attention, positions)]
        best = sorted(sorted(range(n), key=lambda j: (-scores[j], -positions[j]))[:8])
        assert torch.nonzero(result.keep[r, layer, head]).flatten().tolist() == best


def test_readme_links_the_documentation():
    assert "docs/index.md" in (ROOT / "README.md").read_text()
