"""Extensions of the protocol: what to make one from, and those that come with Parley.

from parley.extensions import Extension, TaskSearch, method
"""

from parley.extensions.call_chain import CallChain, Chain, ChainBudget
from parley.extensions.file_transfer import FileTransfer
from parley.extensions.idempotent_send import IdempotentSend
from parley.extensions.in_task_authorization import AuthRequest, InTaskAuthorization, auth_request
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
from parley.extensions.resumable_streams import ResumableStreams
from parley.extensions.run_progress import RunProgress, run_progress
from parley.extensions.skill_schemas import SkillSchema, SkillSchemas, schemas_on
from parley.extensions.spent import Spent
from parley.extensions.task_search import (
    SEARCH,
    SearchTasksRequest,
    SearchTasksResponse,
    TaskSearch,
)
from parley.extensions.typed_questions import Question, TypedQuestions, question
from parley.extensions.usage import (
    REPORT,
    LimitState,
    Usage,
    UsageOfDay,
    UsageRequest,
    UsageResponse,
)
from parley.model.extensions import Extension, ExtensionMethod, method
from parley.model.push import PushOptions
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
    "method",
    "question",
    "run_progress",
    "schemas_on",
]
