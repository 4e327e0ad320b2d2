// The JDK's HTTP client with its default settings, told what to do as the README says. It asks for
// HTTP/2 with every first request over plain HTTP (Connection: Upgrade, HTTP2-Settings).
//
//     java JdkHttpClient.java

import java.io.BufferedReader;
import java.io.IOException;
import java.io.InputStreamReader;
import java.net.URI;
import java.net.http.HttpClient;
import java.net.http.HttpRequest;
import java.net.http.HttpRequest.BodyPublishers;
import java.net.http.HttpResponse;
import java.net.http.HttpResponse.BodyHandlers;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Iterator;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Locale;
import java.util.Map;
import java.util.UUID;
import java.util.function.Consumer;
import java.util.stream.Stream;

public class JdkHttpClient {
    static final HttpClient HTTP = HttpClient.newHttpClient();
    static final String STREAM = "text/event-stream";

    public static void main(String[] arguments) throws IOException {
        var in = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line; (line = in.readLine()) != null; ) {
            var command = map(Json.read(line));
            var id = command.get("id");
            Consumer<Object> give = item -> say(of("id", id, "item", item));
            try {
                new JdkHttpClient(command).perform(command, give);
                say(of("id", id, "end", true));
            } catch (Exception error) {
                var kind = error instanceof Refused ? "Refused" : error.getClass().getSimpleName();
                say(of("id", id, "end", true, "error", kind, "said", String.valueOf(error.getMessage())));
            }
        }
    }

    static void say(Object line) {
        System.out.println(Json.written(line));
    }

    /** What the agent answers is an error. */
    static class Refused extends Exception {
        Refused(String said) {
            super(said);
        }
    }

    final String agent;
    final boolean jsonRpc;
    final boolean older;
    final Map<String, Object> headers;
    String address;

    JdkHttpClient(Map<String, Object> command) {
        agent = (String) command.get("url");
        jsonRpc = command.get("binding").equals("JSONRPC");
        older = command.get("version").equals("0.3");
        headers = command.containsKey("headers") ? map(command.get("headers")) : Map.of();
    }

    void perform(Map<String, Object> command, Consumer<Object> give) throws Exception {
        var card = map(Json.read(get(agent + "/.well-known/agent-card.json")));
        for (var offered : list(card.get("supportedInterfaces"))) {
            var at = map(offered);
            if (at.get("protocolBinding").equals(command.get("binding"))
                    && at.get("protocolVersion").equals(command.get("version"))) {
                address = ((String) at.get("url")).replaceAll("/$", "");
            }
        }
        var texts = list(command.get("texts"));
        switch ((String) command.get("do")) {
            case "card" -> give.accept(of("name", card.get("name")));
            case "message", "refusal", "file" -> give.accept(item(send(texts.get(0), command.get("file"), null)));
            case "question" -> {
                var asked = send(texts.get(0), null, null);
                give.accept(item(asked));
                give.accept(item(send(texts.get(1), null, asked)));
            }
            case "stream" -> {
                try (var events = stream(texts.get(0))) {
                    for (Iterator<Object> each = events.iterator(); each.hasNext(); ) {
                        give.accept(item(map(each.next())));
                    }
                }
            }
            case "cancel" -> {
                try (var events = stream(texts.get(0))) {
                    var task = map(events.iterator().next());
                    give.accept(item(cancel((String) task.get("id"))));
                }
            }
            default -> throw new IllegalArgumentException("no client does " + command.get("do"));
        }
    }

    // The operations.

    Map<String, Object> send(Object text, Object file, Map<String, Object> task) throws Exception {
        var params = of("message", message(text, file, task), "configuration", older ? of("blocking", true) : of());
        return inner(call(older ? "message/send" : "SendMessage", "/message:send", params));
    }

    Map<String, Object> cancel(String task) throws Exception {
        var path = "/tasks/" + task + ":cancel";
        return inner(call(older ? "tasks/cancel" : "CancelTask", path, of("id", task)));
    }

    Stream<Object> stream(Object text) throws Exception {
        var params = of("message", message(text, null, null));
        var request = request(older ? "message/stream" : "SendStreamingMessage", "/message:stream", params, STREAM);
        var answer = HTTP.send(request, BodyHandlers.ofLines());
        if (!answer.headers().firstValue("Content-Type").orElse("").startsWith(STREAM)) {
            inner(read(answer.statusCode(), String.join("\n", answer.body().toList())));
            throw new IOException("the answer is no stream");
        }
        return answer.body().filter(line -> line.startsWith("data:")).map(line -> {
            try {
                return inner(read(answer.statusCode(), line.substring("data:".length())));
            } catch (Refused error) {
                throw new IllegalStateException(error);
            }
        });
    }

    Map<String, Object> message(Object text, Object given, Map<String, Object> task) {
        var plain = older && jsonRpc; // 0.3 over HTTP+JSON has the names of its protocol buffers
        var parts = new ArrayList<Object>();
        parts.add(plain ? of("kind", "text", "text", text) : of("text", text));
        if (given != null) {
            var file = map(given);
            var bytes = file.get("bytes");
            var type = file.get("media_type");
            var name = file.get("name");
            if (plain) {
                parts.add(of("kind", "file", "file", of("bytes", bytes, "mimeType", type, "name", name)));
            } else if (older) {
                parts.add(of("file", of("fileWithBytes", bytes, "mimeType", type, "name", name)));
            } else {
                parts.add(of("raw", bytes, "mediaType", type, "filename", name));
            }
        }
        var message = of("messageId", UUID.randomUUID().toString(), "role", plain ? "user" : "ROLE_USER");
        message.put(older && !jsonRpc ? "content" : "parts", parts);
        if (plain) {
            message.put("kind", "message");
        }
        if (task != null) {
            message.put("taskId", task.get("id"));
            message.put("contextId", task.get("contextId"));
        }
        return message;
    }

    // The bindings.

    HttpRequest request(String method, String path, Map<String, Object> params, String accept) {
        var at = jsonRpc ? address : address + (older ? "/v1" : "") + path;
        var body = jsonRpc ? of("jsonrpc", "2.0", "id", 1, "method", method, "params", params) : params;
        var request = HttpRequest.newBuilder(URI.create(at))
                .header("Content-Type", "application/json")
                .header("Accept", accept)
                .POST(BodyPublishers.ofString(Json.written(body)));
        headers.forEach((name, value) -> request.header(name, (String) value));
        return (older ? request : request.header("A2A-Version", "1.0")).build();
    }

    Map<String, Object> call(String method, String path, Map<String, Object> params) throws Exception {
        var answer = HTTP.send(request(method, path, params, "application/json"), BodyHandlers.ofString());
        return read(answer.statusCode(), answer.body());
    }

    Map<String, Object> read(int status, String body) throws Refused {
        if (status >= 400) {
            throw new Refused(status + " " + body);
        }
        var answer = map(Json.read(body));
        if (answer.containsKey("error")) {
            throw new Refused(Json.written(answer.get("error")));
        }
        return jsonRpc ? map(answer.get("result")) : answer;
    }

    static String get(String url) throws Exception {
        HttpResponse<String> answer = HTTP.send(HttpRequest.newBuilder(URI.create(url)).build(), BodyHandlers.ofString());
        if (answer.statusCode() != 200) {
            throw new Refused(answer.statusCode() + " " + answer.body());
        }
        return answer.body();
    }

    // What answers hold.

    /** What a result wraps: in the JSON-RPC of 0.3 nothing does. */
    static Map<String, Object> inner(Map<String, Object> result) {
        for (var kind : List.of("task", "message", "msg", "statusUpdate", "artifactUpdate")) {
            if (result.get(kind) instanceof Map<?, ?> && !result.containsKey("kind") && !result.containsKey("status")) {
                return map(result.get(kind));
            }
        }
        return result;
    }

    /** The text that an answer or an event brings, and the state that it tells. */
    static Map<String, Object> item(Map<String, Object> event) {
        var status = event.get("status") instanceof Map<?, ?> ? map(event.get("status")) : of();
        var state = (String) status.get("state");
        var asks = state != null && state.toLowerCase(Locale.ROOT).replace('_', '-').endsWith("input-required");
        var said = status.getOrDefault("message", status.get("update"));
        var text = new StringBuilder();
        if (event.containsKey("artifact")) {
            text.append(textOf(event.get("artifact")));
        } else if (event.containsKey("parts") || event.containsKey("content")) {
            text.append(textOf(event));
        } else if (asks && said != null) {
            text.append(textOf(said));
        } else {
            list(event.get("artifacts")).forEach(artifact -> text.append(textOf(artifact)));
        }
        var item = of("text", text.toString());
        if (state != null) {
            item.put("state", state.replace("CANCELLED", "CANCELED")); // 0.3's protocol buffers have two Ls
        }
        return item;
    }

    static String textOf(Object holder) {
        var parts = list(map(holder).getOrDefault("parts", map(holder).get("content")));
        var text = new StringBuilder();
        parts.forEach(part -> text.append(map(part).getOrDefault("text", "")));
        return text.toString();
    }

    static Map<String, Object> of(Object... pairs) {
        var made = new LinkedHashMap<String, Object>();
        for (int n = 0; n < pairs.length; n += 2) {
            made.put((String) pairs[n], pairs[n + 1]);
        }
        return made;
    }

    @SuppressWarnings("unchecked")
    static Map<String, Object> map(Object value) {
        return (Map<String, Object>) value;
    }

    @SuppressWarnings("unchecked")
    static List<Object> list(Object value) {
        return value == null ? List.of() : (List<Object>) value;
    }
}

/** JSON, of which the JDK has none: no more than these messages need. */
class Json {
    final String text;
    int at;

    Json(String text) {
        this.text = text;
    }

    static Object read(String text) {
        return new Json(text).value();
    }

    Object value() {
        switch (next()) {
            case '{':
                var members = new LinkedHashMap<String, Object>();
                for (at++; next() != '}'; skip(',')) {
                    var name = (String) value();
                    skip(':');
                    members.put(name, value());
                }
                at++;
                return members;
            case '[':
                var items = new ArrayList<Object>();
                for (at++; next() != ']'; skip(',')) {
                    items.add(value());
                }
                at++;
                return items;
            case '"':
                return string();
            default:
                int from = at;
                while (at < text.length() && ",]} \t\r\n".indexOf(text.charAt(at)) < 0) {
                    at++;
                }
                var word = text.substring(from, at);
                return switch (word) {
                    case "true" -> true;
                    case "false" -> false;
                    case "null" -> null;
                    default -> word.matches("-?\\d{1,18}") ? (Object) Long.valueOf(word) : Double.valueOf(word);
                };
        }
    }

    String string() {
        var found = new StringBuilder();
        for (at++; text.charAt(at) != '"'; at++) {
            char c = text.charAt(at);
            if (c == '\\') {
                c = text.charAt(++at);
                if (c == 'u') {
                    c = (char) Integer.parseInt(text.substring(at + 1, at + 5), 16);
                    at += 4;
                } else {
                    int known = "bfnrt".indexOf(c);
                    c = known < 0 ? c : "\b\f\n\r\t".charAt(known);
                }
            }
            found.append(c);
        }
        at++;
        return found.toString();
    }

    char next() {
        while (Character.isWhitespace(text.charAt(at))) {
            at++;
        }
        return text.charAt(at);
    }

    void skip(char separator) {
        if (next() == separator) {
            at++;
        }
    }

    static String written(Object value) {
        if (value instanceof Map<?, ?> members) {
            var each = members.entrySet().stream().map(m -> quoted((String) m.getKey()) + ":" + written(m.getValue()));
            return "{" + String.join(",", each.toList()) + "}";
        }
        if (value instanceof List<?> items) {
            return "[" + String.join(",", items.stream().map(Json::written).toList()) + "]";
        }
        return value instanceof String string ? quoted(string) : String.valueOf(value);
    }

    static String quoted(String string) {
        var safe = new StringBuilder("\"");
        for (char c : string.toCharArray()) {
            safe.append(c < ' ' || c == '"' || c == '\\' || c > '~' ? String.format("\\u%04x", (int) c) : c);
        }
        return safe.append('"').toString();
    }
}
