"""The text of a file as libcst has it, with edits at places that are given by line and column."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal, cast

import libcst as cst
from libcst.metadata import MetadataWrapper, PositionProvider

Start = tuple[int, int]
Span = tuple[int, int, int, int]
Block = cst.IndentedBlock | cst.Module
Statement = cst.SimpleStatementLine | cst.BaseCompoundStatement


class EditError(Exception):
    """An edit has no place in the text."""


@dataclass(slots=True)
class _AtStatement:
    before: list[str] = field(default_factory=list)
    after: list[str] = field(default_factory=list)
    end: list[str] = field(default_factory=list)
    heading: str = ""
    removed: bool = False


class ConcreteText:
    """Edits are noted first, then carried out at once by :meth:`result`. Errors: EditError."""

    def __init__(self, text: str) -> None:
        try:
            wrapper = MetadataWrapper(cst.parse_module(text), unsafe_skip_copy=True)
        except cst.ParserSyntaxError as error:
            raise EditError(f"libcst cannot read the file: {error.message}") from error
        self._module = wrapper.module
        self._statements: dict[Start, Statement] = {}
        self._expressions: dict[Span, list[cst.BaseExpression]] = {}
        for node, where in wrapper.resolve(PositionProvider).items():
            start = (where.start.line, where.start.column)
            if isinstance(node, cst.SimpleStatementLine | cst.BaseCompoundStatement):
                self._statements.setdefault(start, node)
            elif isinstance(node, cst.BaseExpression):
                span = (*start, where.end.line, where.end.column)
                self._expressions.setdefault(span, []).append(node)
        self._at: dict[cst.CSTNode, _AtStatement] = {}
        self._calls: dict[cst.CSTNode, list[tuple[str, str | None]]] = {}
        self._new: dict[cst.CSTNode, str] = {}
        self._imports: list[str] = []

    # ---- what to do

    def remove(self, start: Start) -> None:
        """Take out the statement that begins there."""
        self._place(start).removed = True

    def insert(self, start: Start, where: Literal["before", "after", "end"], text: str) -> None:
        """Put lines before or after a statement, or at the end of its body."""
        cast("list[str]", getattr(self._place(start), where)).append(text)

    def wrap(self, start: Start, heading: str) -> None:
        """Put a statement in a block of its own."""
        self._place(start).heading = heading

    def add_import(self, text: str) -> None:
        """Add an import after the others at the top."""
        self._imports.append(text)

    def set_keyword(self, span: Span, name: str, value: str | None) -> None:
        """Set, add or take out a keyword argument of the call there."""
        self._calls.setdefault(cst.ensure_type(self._expression(span), cst.Call), []).append((name, value))

    def replace(self, span: Span, text: str) -> None:
        """Write another expression for the one there."""
        self._new[self._expression(span)] = text

    def _place(self, start: Start) -> _AtStatement:
        node = self._statements.get(start)
        if node is None:
            raise EditError(f"no statement begins at line {start[0]}")
        if isinstance(node, cst.SimpleStatementLine) and len(node.body) > 1:
            raise EditError(f"line {start[0]} has several statements")
        return self._at.setdefault(node, _AtStatement())

    def _expression(self, span: Span) -> cst.BaseExpression:
        found = self._expressions.get(span)
        if found:
            return found[0]
        raise EditError(f"no expression is at line {span[0]}, column {span[1] + 1}")

    # ---- doing it

    def result(self) -> str:
        """The text after all edits."""
        changer = _Changer(self._at, self._calls, self._new)
        module = self._module.visit(changer)
        if changer.done != len(self._at) + len(self._calls) + len(self._new):
            raise EditError("edits overlap")
        for text in self._imports:
            module = _with_import(module, text)
        return module.code


class _Changer(cst.CSTTransformer):
    def __init__(
        self,
        at: dict[cst.CSTNode, _AtStatement],
        calls: dict[cst.CSTNode, list[tuple[str, str | None]]],
        new: dict[cst.CSTNode, str],
    ) -> None:
        super().__init__()
        self._at, self._calls, self._new = at, calls, new
        self._gone: set[int] = set()
        self._kept: list[cst.CSTNode] = []  # so that no identity is used twice
        self.done = 0

    def on_leave(
        self, original_node: cst.CSTNodeT, updated_node: cst.CSTNodeT
    ) -> cst.CSTNodeT | cst.RemovalSentinel | cst.FlattenSentinel[cst.CSTNodeT]:
        node: cst.CSTNode = updated_node
        if original_node in self._calls:
            self.done += 1
            for name, value in self._calls[original_node]:
                node = _with_keyword(cst.ensure_type(node, cst.Call), name, value)
        if original_node in self._new:
            self.done += 1
            node = _expression_of(self._new[original_node], cast("cst.BaseExpression", node))
        if isinstance(node, cst.IndentedBlock | cst.Module):
            node = self._without_gone(node)
        if original_node in self._at:
            self.done += 1
            return self._statement(cast("Statement", node), self._at[original_node])  # type: ignore[return-value]
        return cast("cst.CSTNodeT", node)

    def _statement(
        self, node: Statement, edits: _AtStatement
    ) -> cst.BaseStatement | cst.FlattenSentinel[cst.BaseStatement]:
        if edits.removed:
            comments = [
                line
                for line in node.leading_lines
                if line.comment is not None or line is not node.leading_lines[-1]
            ]
            marker = cst.SimpleStatementLine(
                [cst.Pass()], leading_lines=comments if _has_comment(comments) else []
            )
            self._gone.add(id(marker))
            self._kept.append(marker)
            middle: Statement = marker
        else:
            middle = _ended(node, edits.end)
            if edits.heading:
                middle = _wrapped(middle, edits.heading)
        if not edits.before and not edits.after:
            return middle
        before = _lines(edits.before)
        if edits.removed and before and isinstance(node, cst.SimpleStatementLine):
            before[-1] = before[-1].with_changes(trailing_whitespace=node.trailing_whitespace)
        return cst.FlattenSentinel([*before, middle, *_lines(edits.after)])

    def _without_gone(self, block: Block) -> Block:
        """Statements that are taken out; their comments go to what follows."""
        if not any(id(one) in self._gone for one in block.body):
            return block
        waiting: list[cst.EmptyLine] = []
        body: list[cst.BaseStatement] = []
        for one in block.body:
            if id(one) in self._gone:
                waiting += getattr(one, "leading_lines", ())
            else:
                body.append(
                    one.with_changes(leading_lines=[*waiting, *getattr(one, "leading_lines", ())])
                    if waiting
                    else one
                )
                waiting = []
        if not body and isinstance(block, cst.IndentedBlock):
            return block.with_changes(body=[cst.SimpleStatementLine([cst.Pass()], leading_lines=waiting)])
        return block.with_changes(body=body, footer=[*waiting, *block.footer])


def _has_comment(lines: Sequence[cst.EmptyLine]) -> bool:
    return any(one.comment is not None for one in lines)


def _lines(texts: Sequence[str]) -> list[cst.BaseStatement]:
    return [one for text in texts for one in cst.parse_module(text).body]


def _ended(node: Statement, texts: Sequence[str]) -> Statement:
    """A function or a block with more lines at its end."""
    if not texts:
        return node
    block = getattr(node, "body", None)
    if not isinstance(block, cst.IndentedBlock):
        raise EditError("the body is on the line of its heading")
    return node.with_changes(body=block.with_changes(body=[*block.body, *_lines(texts)]))


def _wrapped(node: Statement, heading: str) -> Statement:
    outer = cast("cst.BaseCompoundStatement", cst.parse_statement(f"{heading}\n    pass\n"))
    block = cst.IndentedBlock([node.with_changes(leading_lines=())])
    return outer.with_changes(body=block, leading_lines=node.leading_lines)


def _expression_of(text: str, old: cst.BaseExpression) -> cst.BaseExpression:
    """A new expression in the parentheses of the old one."""
    try:
        new = cst.parse_expression(text)
    except cst.ParserSyntaxError:
        new = cst.parse_expression(f"({text})")
    if old.lpar and not new.lpar:
        new = new.with_changes(lpar=old.lpar, rpar=old.rpar)
    return new


def _with_keyword(call: cst.Call, name: str, value: str | None) -> cst.Call:
    arguments = list(call.args)
    found = next((k for k, one in enumerate(arguments) if one.keyword and one.keyword.value == name), None)
    if value is None:
        if found is None:
            raise EditError(f"the call has no argument {name}")
        gone = arguments.pop(found)
        if arguments and found == len(arguments):  # it was the last one
            arguments[-1] = arguments[-1].with_changes(
                comma=gone.comma, whitespace_after_arg=gone.whitespace_after_arg
            )
        return call.with_changes(args=arguments)
    if found is not None:
        arguments[found] = arguments[found].with_changes(value=cst.parse_expression(value))
        return call.with_changes(args=arguments)
    new = cst.Arg(
        cst.parse_expression(value), keyword=cst.Name(name),
        equal=cst.AssignEqual(cst.SimpleWhitespace(""), cst.SimpleWhitespace("")),
    )  # fmt: skip
    if arguments and arguments[-1].star == "**":
        between = _comma_like(arguments)
        return call.with_changes(args=[*arguments[:-1], new.with_changes(comma=between), arguments[-1]])
    if arguments:
        last = arguments[-1]
        ends_with_comma = isinstance(last.comma, cst.Comma)
        new = new.with_changes(
            comma=last.comma if ends_with_comma else cst.MaybeSentinel.DEFAULT,
            whitespace_after_arg=last.whitespace_after_arg,
        )
        arguments[-1] = last.with_changes(
            comma=_comma_like(arguments), whitespace_after_arg=cst.SimpleWhitespace("")
        )
    return call.with_changes(args=[*arguments, new])


def _comma_like(arguments: Sequence[cst.Arg]) -> cst.Comma:
    """A comma with the space, or the line end, that separates the arguments of the call."""
    for one in arguments[:-1]:
        if isinstance(one.comma, cst.Comma) and not _commented(one.comma):
            return one.comma
    return cst.Comma(whitespace_after=cst.SimpleWhitespace(" "))


def _commented(comma: cst.Comma) -> bool:
    return isinstance(comma.whitespace_after, cst.ParenthesizedWhitespace) and (
        comma.whitespace_after.first_line.comment is not None
        or _has_comment(comma.whitespace_after.empty_lines)
    )


def _with_import(module: cst.Module, text: str) -> cst.Module:
    """After the last import of the first imports; else after the docstring and imports from ``__future__``."""
    line = cst.ensure_type(cst.parse_statement(text), cst.SimpleStatementLine)
    place = 0
    for number, one in enumerate(module.body):
        if not isinstance(one, cst.SimpleStatementLine):
            break
        first = one.body[0]
        if isinstance(first, cst.Import | cst.ImportFrom):
            place = number + 1
        elif not (number == 0 and isinstance(first, cst.Expr)):
            break
    if place == 0 and module.get_docstring() is not None:
        place = 1
    body = list(module.body)
    return module.with_changes(body=[*body[:place], line, *body[place:]])
