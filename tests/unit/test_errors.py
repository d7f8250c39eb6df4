from scalefold.errors import listed


def test_the_first_few_findings_stand_on_lines_and_the_rest_is_counted() -> None:
    findings = [f"key{i}" for i in range(5)]
    assert listed(findings, shown=5) == "".join(f"\n  key{i}" for i in range(5))
    assert listed(findings, shown=3) == "\n  key0\n  key1\n  key2\n  and 2 more"
    assert listed([]) == ""
