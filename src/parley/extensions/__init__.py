"""Extensions of the protocol: how to make an extension, and Parley's own extensions.

from parley.extensions import Extension, TaskSearch, method
"""

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
