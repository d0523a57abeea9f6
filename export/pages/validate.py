"""``hybridge validate --html``: how far an artifact is from its checkpoint, by operation and position."""

from __future__ import annotations

from collections.abc import Sequence

from hybridge.export.check.validate import ValidationReport
from hybridge.export.pages.error_chart import error_chart
from hybridge.export.pages.page import page


def validate_page(title: str, report: ValidationReport, rows: Sequence[tuple[str, str]]) -> str:
    """Return the page of a validation. rows: names and values of its table."""
    return page(
        "validate.html.jinja",
        {
            "title": title,
            "report": report,
            "rows": rows,
            "chart": error_chart(report.worst_at, report.largest_logit, report.tolerance),
        },
    )
