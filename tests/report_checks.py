"""What must be true of every report, whatever was measured."""

import csv
import html
import json
import xml.etree.ElementTree as ET

import pytest

XHTML = "{http://www.w3.org/1999/xhtml}"


def check_pages(out):
    """The page is well-formed and needs no other file; tables, figures and units are those of the files, number by
    number."""
    report = json.loads((out / "report.json").read_text())
    page, text = ET.parse(out / "report.html").getroot(), (out / "report.html").read_text()
    used = [value for element in page.iter() for key, value in element.items() if key in ("src", "href")]
    assert (
        not [u for u in used if ":" in u and not u.startswith("data:image/")]
        and "@import" not in text
        and "url(" not in text
    )
    markdown = (out / "report.md").read_text()
    shown = {t.get("id").removeprefix("table-"): t for t in page.iter(f"{XHTML}table")}
    assert list(shown) == list(report["tables"])
    for name, data in report["tables"].items():
        with (out / "tables" / f"{name}.csv").open(newline="") as f:
            written = list(csv.reader(f))
        assert written[0] == list(data[0])
        assert written[1:] == [["" if v is None else str(v) for v in row.values()] for row in data]
        cells = [[td.text or "" for td in tr.iter(f"{XHTML}td")] for tr in shown[name].iter(f"{XHTML}tr")][1:]
        assert len(cells) == len(data)
        for line, row in zip(cells, data):
            for cell, value in zip(line, row.values(), strict=True):
                assert agrees(cell, value), (name, cell, value)
            assert "| " + " | ".join(c.replace("|", "\\|") for c in line) in markdown
    links = {a.get("href") for a in page.iter(f"{XHTML}a")}
    assert all((out / link).is_file() for link in links)
    assert {f"tables/{name}.csv" for name in report["tables"]} <= links
    images = list(page.iter(f"{XHTML}img"))
    assert len(images) == len(report["figures"]) and all(
        i.get("src").startswith("data:image/svg+xml;base64,") for i in images
    )
    for name in report["figures"]:
        assert {f"figures/{name}.svg", f"figures/{name}.csv"} <= links and f"](figures/{name}.svg)" in markdown
        ET.parse(out / "figures" / f"{name}.svg")
        assert (out / "figures" / f"{name}.csv").read_text().count("\n") > 1
    heads = [h.get("id") for h in page.iter(f"{XHTML}h3") if h.get("id").startswith("unit-")]
    assert heads == [f"unit-{r['unit']}" for r in report["records"]]
    assert all(r["origin"]["command"] in html.unescape(text) for r in report["records"])


def agrees(cell, value):
    """Whether a cell is the value, rounded."""
    if value is None or isinstance(value, str):
        return cell == ("-" if value is None else value)
    digits = len(cell.partition(".")[2])
    return float(cell.replace(",", "")) == pytest.approx(value, abs=0.5001 * 10**-digits)
