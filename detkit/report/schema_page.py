"""docs/recipe.md from the schema: `python -m detkit.report.schema_page` prints it."""

from detkit.recipe.schema import Recipe, Section

HEAD = """# Every setting of a recipe

Written by `make docs` from `detkit/recipe/schema.py`. `--set` and error messages use the same dotted names.
"""


def page() -> str:
    """The page as Markdown."""
    lines = [HEAD]
    for name, field in Recipe.model_fields.items():
        if isinstance(field.annotation, type) and issubclass(field.annotation, Section):
            lines += table(field.annotation, name)
    return "\n".join(lines)


def table(section: type[Section], prefix: str) -> list[str]:
    """A heading and a row per setting; nested sections follow."""
    lines = [f"## {prefix}", "", (section.__doc__ or "").strip(), "", "| setting | default | what |", "|---|---|---|"]
    nested: list[str] = []
    for name, field in section.model_fields.items():
        if isinstance(field.annotation, type) and issubclass(field.annotation, Section):
            nested += table(field.annotation, f"{prefix}.{name}")
        else:
            lines.append(f"| `{prefix}.{name}` | `{field.default!r}` | {field.description} |")
    return [*lines, "", *nested]


if __name__ == "__main__":
    print(page(), end="")
