"""Extensions of the protocol: Parley's own extensions, and the base for others.

from parley.extensions import Extension, TaskSearch, method
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from parley.model.distribution import loaded_when_used

if TYPE_CHECKING:
    from parley.extensions.call_chain import CallChain, Chain, ChainBudget
    from parley.extensions.declared import (
        FileTransfer,
        IdempotentSend,
        SkillSchema,
        SkillSchemas,
        schemas_on,
    )
    from parley.extensions.installed import installed_extension, installed_extensions
    from parley.extensions.message_timestamps import MessageTimestamps
    from parley.extensions.push_delivery import (
        PUSH_HISTORY,
        SET_PUSH_OPTIONS,
        GetPushHistoryRequest,
        GetPushHistoryResponse,
        PushAttempt,
        PushDelivery,
        PushHistory,
        PushOptionsResponse,
        SetPushOptionsRequest,
    )
    from parley.extensions.questions import (
        AuthRequest,
        InTaskAuthorization,
        Question,
        TypedQuestions,
        auth_request,
        question,
    )
    from parley.extensions.resumable_streams import ResumableStreams
    from parley.extensions.task_search import (
        SEARCH,
        SearchTasksRequest,
        SearchTasksResponse,
        TaskSearch,
    )
    from parley.extensions.usage import (
        REPORT,
        LimitState,
        RunProgress,
        Spent,
        Usage,
        UsageOfDay,
        UsageRequest,
        UsageResponse,
        run_progress,
    )
    from parley.model.extensions import Extension, ExtensionMethod, method
    from parley.model.operations import PushOptions
    from parley.model.struct import A2AStruct

_HOMES = {
    "parley.extensions.call_chain": "CallChain Chain ChainBudget",
    "parley.extensions.declared": "FileTransfer IdempotentSend SkillSchema SkillSchemas schemas_on",
    "parley.extensions.installed": "installed_extension installed_extensions",
    "parley.extensions.message_timestamps": "MessageTimestamps",
    "parley.extensions.push_delivery": (
        "PUSH_HISTORY SET_PUSH_OPTIONS GetPushHistoryRequest GetPushHistoryResponse PushAttempt "
        "PushDelivery PushHistory PushOptionsResponse SetPushOptionsRequest"
    ),
    "parley.extensions.questions": (
        "AuthRequest InTaskAuthorization Question TypedQuestions auth_request question"
    ),
    "parley.extensions.resumable_streams": "ResumableStreams",
    "parley.extensions.task_search": "SEARCH SearchTasksRequest SearchTasksResponse TaskSearch",
    "parley.extensions.usage": (
        "REPORT LimitState RunProgress Spent Usage UsageOfDay UsageRequest UsageResponse "
        "run_progress"
    ),
    "parley.model.extensions": "Extension ExtensionMethod method",
    "parley.model.operations": "PushOptions",
    "parley.model.struct": "A2AStruct",
}

__all__ = [
    "PUSH_HISTORY",
    "REPORT",
    "SEARCH",
    "SET_PUSH_OPTIONS",
    "A2AStruct",
    "AuthRequest",
    "CallChain",
    "Chain",
    "ChainBudget",
    "Extension",
    "ExtensionMethod",
    "FileTransfer",
    "GetPushHistoryRequest",
    "GetPushHistoryResponse",
    "IdempotentSend",
    "InTaskAuthorization",
    "LimitState",
    "MessageTimestamps",
    "PushAttempt",
    "PushDelivery",
    "PushHistory",
    "PushOptions",
    "PushOptionsResponse",
    "Question",
    "ResumableStreams",
    "RunProgress",
    "SearchTasksRequest",
    "SearchTasksResponse",
    "SetPushOptionsRequest",
    "SkillSchema",
    "SkillSchemas",
    "Spent",
    "TaskSearch",
    "TypedQuestions",
    "Usage",
    "UsageOfDay",
    "UsageRequest",
    "UsageResponse",
    "auth_request",
    "installed_extension",
    "installed_extensions",
    "method",
    "question",
    "run_progress",
    "schemas_on",
]

__getattr__, __dir__ = loaded_when_used(__name__, _HOMES)
