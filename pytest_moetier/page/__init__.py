"""A report that people look at, from documents of ``--moetier-json``: what holds, the figures, and every proof.

One path: ``model`` makes of documents what is shown, ``charts`` draws, ``html`` and ``markdown`` write it, ``write``
puts it into a folder. matplotlib and jinja2 (the extra ``report``) are imported only when a report is made.
"""
