"""Tools for long tasks, for hosts without the tasks extension."""

from __future__ import annotations

from mcp import types

_TASK = {"type": "string", "description": "The name of the task, as a tool here returned it"}

TASK_TOOLS = [
    types.Tool(
        name="start_task",
        title="Start a task",
        description=(
            "Start a skill that takes long, and return the name of its task at once. Use it in "
            "place of a call of the tool when you need not wait."
        ),
        input_schema={
            "type": "object",
            "properties": {
                "tool": {"type": "string", "description": "The name of a tool of this server"},
                "arguments": {"type": "object", "description": "The arguments of that tool"},
            },
            "required": ["tool"],
        },
        annotations=types.ToolAnnotations(open_world_hint=True),
    ),
    types.Tool(
        name="follow_task",
        title="Follow a task",
        description="Wait for a task that was started, and return its result, or what it asks.",
        input_schema={
            "type": "object",
            "properties": {
                "task": _TASK,
                "wait_seconds": {
                    "type": "number",
                    "description": "How long to wait; 0 only says how it stands",
                },
            },
            "required": ["task"],
        },
        annotations=types.ToolAnnotations(read_only_hint=True),
    ),
    types.Tool(
        name="answer_task",
        title="Answer a task",
        description="Answer what a task asks, and wait for its result.",
        input_schema={
            "type": "object",
            "properties": {
                "task": _TASK,
                "answer": {"description": "A text, or JSON if the task said what has to fit"},
            },
            "required": ["task", "answer"],
        },
        annotations=types.ToolAnnotations(open_world_hint=True),
    ),
    types.Tool(
        name="cancel_task",
        title="Cancel a task",
        description="Stop a task that is still at work.",
        input_schema={"type": "object", "properties": {"task": _TASK}, "required": ["task"]},
        annotations=types.ToolAnnotations(destructive_hint=True, idempotent_hint=True),
    ),
]
