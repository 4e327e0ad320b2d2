//! The measured agents on the Rust SDK's server, with its store in memory.
//!
//! Arguments: the port, and what the agent does: reply, task, stream, wait or talk.

use std::sync::Arc;

use a2a::*;
use a2a_server::jsonrpc::jsonrpc_router;
use a2a_server::{AgentExecutor, DefaultRequestHandler, ExecutorContext, InMemoryTaskStore};
use axum::serve::ListenerExt;
use futures::stream::{self, BoxStream, StreamExt};

type Event = Result<StreamResponse, A2AError>;

struct Agent {
    does: String,
}

/// The ids that every event of a task carries.
#[derive(Clone)]
struct Of {
    task_id: TaskId,
    context_id: String,
}

impl Of {
    fn submitted(&self, history: Vec<Message>) -> StreamResponse {
        StreamResponse::Task(Task {
            id: self.task_id.clone(),
            context_id: self.context_id.clone(),
            status: status(TaskState::Submitted),
            artifacts: None,
            history: Some(history),
            metadata: None,
        })
    }

    fn state(&self, state: TaskState) -> StreamResponse {
        StreamResponse::StatusUpdate(TaskStatusUpdateEvent {
            task_id: self.task_id.clone(),
            context_id: self.context_id.clone(),
            status: status(state),
            metadata: None,
        })
    }

    fn artifact(&self, id: &str, text: String, append: bool) -> StreamResponse {
        StreamResponse::ArtifactUpdate(TaskArtifactUpdateEvent {
            task_id: self.task_id.clone(),
            context_id: self.context_id.clone(),
            artifact: Artifact {
                artifact_id: id.to_string(),
                name: Some("result".to_string()),
                description: None,
                parts: vec![Part::text(text)],
                metadata: None,
                extensions: None,
            },
            append: Some(append),
            last_chunk: None,
            metadata: None,
        })
    }

    fn said(&self, text: String) -> Message {
        Message {
            task_id: Some(self.task_id.clone()),
            context_id: Some(self.context_id.clone()),
            ..Message::new(Role::Agent, vec![Part::text(text)])
        }
    }
}

fn status(state: TaskState) -> TaskStatus {
    TaskStatus {
        state,
        message: None,
        timestamp: None,
    }
}

fn in_turn(events: Vec<StreamResponse>) -> BoxStream<'static, Event> {
    stream::iter(events.into_iter().map(Ok)).boxed()
}

impl AgentExecutor for Agent {
    fn execute(&self, context: ExecutorContext) -> BoxStream<'static, Event> {
        let message = context.message.expect("a message started it");
        let text: String = message.parts.iter().filter_map(Part::as_text).collect();
        let of = Of {
            task_id: context.task_id,
            context_id: context.context_id,
        };
        match self.does.as_str() {
            "reply" => {
                let mut reply = of.said(text);
                reply.task_id = None;
                in_turn(vec![StreamResponse::Message(reply)])
            }
            "task" => in_turn(vec![
                of.submitted(vec![message]),
                of.state(TaskState::Working),
                of.artifact(&new_artifact_id(), text, false),
                of.state(TaskState::Completed),
            ]),
            "stream" => {
                let chunks: usize = text.parse().expect("a number of chunks");
                let begun = in_turn(vec![
                    of.submitted(vec![message]),
                    of.state(TaskState::Working),
                ]);
                let ended = in_turn(vec![of.state(TaskState::Completed)]);
                // A reader that is 32 events behind is dropped: it must have a chance to read.
                let chunks = stream::iter(0..chunks).then(move |n| {
                    let chunk = of.artifact("report", format!("chunk {n} "), n > 0);
                    async {
                        tokio::task::yield_now().await;
                        Ok(chunk)
                    }
                });
                begun.chain(chunks).chain(ended).boxed()
            }
            "wait" => in_turn(vec![
                of.submitted(vec![message]),
                of.state(TaskState::Working),
            ])
            .chain(stream::pending())
            .boxed(),
            _ => {
                let mut history = vec![message];
                history.extend((1..20).map(|n| of.said(format!("message {n} of a conversation"))));
                in_turn(vec![of.submitted(history), of.state(TaskState::Completed)])
            }
        }
    }

    fn cancel(&self, context: ExecutorContext) -> BoxStream<'static, Event> {
        let of = Of {
            task_id: context.task_id,
            context_id: context.context_id,
        };
        in_turn(vec![of.state(TaskState::Canceled)])
    }
}

#[tokio::main]
async fn main() {
    let words: Vec<String> = std::env::args().collect();
    let [_, port, does] = &words[..] else {
        panic!("usage: measured PORT reply|task|stream|wait|talk");
    };
    let capabilities = AgentCapabilities {
        streaming: Some(true),
        ..Default::default()
    };
    let handler =
        DefaultRequestHandler::new(Agent { does: does.clone() }, InMemoryTaskStore::new())
            .with_capabilities(capabilities);
    let listener = tokio::net::TcpListener::bind(format!("127.0.0.1:{port}"))
        .await
        .expect("the port is free")
        // Else the second packet of an answer waits for the client's acknowledgement, for 40 ms.
        .tap_io(|connection| drop(connection.set_nodelay(true)));
    axum::serve(listener, jsonrpc_router(Arc::new(handler)))
        .await
        .expect("it serves");
}
