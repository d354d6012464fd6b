"""The outline of a page: its elements, ids and links."""

from html.parser import HTMLParser

VOID = {"meta", "link", "br", "input", "hr", "img", "wbr"}


class Outline(HTMLParser):
    """Checks that elements close in order; gathers ids, links and what would be fetched."""

    def __init__(self, text):
        super().__init__()
        self.open = []
        self.ids = []
        self.links = []
        self.fetched = []
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag, attributes):
        named = dict(attributes)
        if tag not in VOID:
            self.open.append(tag)
        if "id" in named:
            self.ids.append(named["id"])
        if tag == "a":
            self.links.append(named["href"])
        else:
            self.fetched += [
                value
                for name, value in attributes
                if name in ("src", "href", "xlink:href", "data", "srcset") and value
            ]

    def handle_startendtag(self, tag, attributes):
        self.handle_starttag(tag, attributes)
        if tag not in VOID:
            self.handle_endtag(tag)

    def handle_endtag(self, tag):
        assert self.open and self.open[-1] == tag, f"</{tag}> closes {self.open[-3:]} at {self.getpos()}"
        self.open.pop()
