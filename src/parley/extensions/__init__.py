"""Extensions of the protocol: what to make one from, and those that come with Parley.

from parley.extensions import Extension, TaskSearch, method
"""

from parley.extensions.call_chain import CallChain, Chain
from parley.extensions.file_transfer import FileTransfer
from parley.extensions.idempotent_send import IdempotentSend
from parley.extensions.in_task_authorization import AuthRequest, InTaskAuthorization, auth_request
from parley.extensions.message_timestamps import MessageTimestamps
from parley.extensions.resumable_streams import ResumableStreams
from parley.extensions.skill_schemas import SkillSchema, SkillSchemas, schemas_on
from parley.extensions.task_search import (
    SEARCH,
    SearchTasksRequest,
    SearchTasksResponse,
    TaskSearch,
)
from parley.extensions.typed_questions import Question, TypedQuestions, question
from parley.model.extensions import Extension, ExtensionMethod, method
from parley.model.struct import A2AStruct

__all__ = [
    "SEARCH",
    "A2AStruct",
    "AuthRequest",
    "CallChain",
    "Chain",
    "Extension",
    "ExtensionMethod",
    "FileTransfer",
    "IdempotentSend",
    "InTaskAuthorization",
    "MessageTimestamps",
    "Question",
    "ResumableStreams",
    "SearchTasksRequest",
    "SearchTasksResponse",
    "SkillSchema",
    "SkillSchemas",
    "TaskSearch",
    "TypedQuestions",
    "auth_request",
    "method",
    "question",
    "schemas_on",
]
