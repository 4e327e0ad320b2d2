import java.io.BufferedReader;
import java.io.ByteArrayInputStream;
import java.io.IOException;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.net.URI;
import java.net.http.HttpClient;
import java.net.http.HttpRequest;
import java.net.http.HttpRequest.BodyPublisher;
import java.net.http.HttpRequest.BodyPublishers;
import java.net.http.HttpResponse;
import java.net.http.HttpResponse.BodyHandlers;
import java.nio.charset.StandardCharsets;
import java.util.Iterator;
import java.util.Map;
import java.util.UUID;
import java.util.stream.Stream;

/**
 * The JDK's own HTTP client as a caller of agents, with its default settings: over plain HTTP it
 * asks for HTTP/2 with the first request of each connection.
 *
 * <p>Each line of the standard input is one request, done after the one before it: what to do, the
 * address of the agent, the binding (JSONRPC or HTTP+JSON), the version (1.0 or 0.3) and the text
 * of a message, with tabs between them. {@code send} waits for the answer; {@code chunked} sends
 * the body without saying its length, {@code expect} sends it once the server wants it; {@code
 * stream} follows the events; {@code card} reads the card, and needs no more than an address. A line
 * {@code new} has what follows done over connections of its own. Arguments are one request, in place
 * of the standard input.
 *
 * <p>Each answer is one line of JSON: {@code status}, {@code protocol}, {@code type} (the media
 * type) and {@code body}, and before it a line with {@code event} for each event of a stream; or
 * {@code error} where there is no answer.
 */
public final class Client {
  private static final PrintStream OUT =
      new PrintStream(System.out, true, StandardCharsets.UTF_8);

  private HttpClient http = HttpClient.newHttpClient();

  public static void main(String[] arguments) throws Exception {
    Client client = new Client();
    if (arguments.length > 0) {
      client.answer(arguments);
      return;
    }
    InputStreamReader input = new InputStreamReader(System.in, StandardCharsets.UTF_8);
    BufferedReader lines = new BufferedReader(input);
    for (String line = lines.readLine(); line != null; line = lines.readLine()) {
      client.answer(line.split("\t", -1));
    }
  }

  private void answer(String[] fields) throws InterruptedException {
    if (fields[0].equals("new")) {
      http = HttpClient.newHttpClient();
      return;
    }
    try {
      HttpRequest request = request(fields[0], fields[1], fields);
      if (fields[0].equals("stream")) {
        follow(request);
      } else {
        HttpResponse<String> response = http.send(request, BodyHandlers.ofString());
        print(response, response.body());
      }
    } catch (IOException | IllegalArgumentException error) {
      OUT.println("{\"error\": " + quoted(error.toString()) + "}");
    }
  }

  private void follow(HttpRequest request) throws IOException, InterruptedException {
    HttpResponse<Stream<String>> response = http.send(request, BodyHandlers.ofLines());
    StringBuilder rest = new StringBuilder();
    try (Stream<String> body = response.body()) {
      Iterator<String> lines = body.iterator();
      while (lines.hasNext()) {
        String line = lines.next();
        if (line.startsWith("data:")) {
          OUT.println("{\"event\": " + quoted(line.substring(5).strip()) + "}");
        } else if (!isEventStream(response)) {
          rest.append(line).append('\n');
        }
      }
    }
    print(response, rest.toString());
  }

  private static HttpRequest request(String what, String url, String[] fields) {
    String base = url.endsWith("/") ? url.substring(0, url.length() - 1) : url;
    if (what.equals("card")) {
      return HttpRequest.newBuilder(URI.create(base + "/.well-known/agent-card.json")).build();
    }
    String binding = fields[2];
    String version = fields[3];
    boolean isOld = version.equals("0.3");
    boolean isRpc = binding.equals("JSONRPC");
    String body = body(fields[4], isOld, isRpc);
    String verb = what.equals("stream") ? "stream" : "send";
    String path = "/message:" + verb;
    if (isRpc) {
      String method = verb.equals("stream") ? "SendStreamingMessage" : "SendMessage";
      method = isOld ? "message/" + verb : method;
      body = "{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"%s\",\"params\":%s}".formatted(method, body);
    } else {
      url = base + (isOld ? "/v1" : "") + path;
    }
    String type = isRpc || isOld ? "application/json" : "application/a2a+json";
    return HttpRequest.newBuilder(URI.create(url))
        .headers("Content-Type", type, "A2A-Version", version)
        .expectContinue(what.equals("expect"))
        .POST(publisher(body, what.equals("chunked")))
        .build();
  }

  private static BodyPublisher publisher(String body, boolean isChunked) {
    byte[] bytes = body.getBytes(StandardCharsets.UTF_8);
    return isChunked
        ? BodyPublishers.ofInputStream(() -> new ByteArrayInputStream(bytes))
        : BodyPublishers.ofByteArray(bytes);
  }

  /** The request that sends a text: that of the proto over HTTP+JSON of 0.3. */
  private static String body(String text, boolean isOld, boolean isRpc) {
    String id = UUID.randomUUID().toString();
    String said = quoted(text);
    String form = "{\"message\":{\"messageId\":\"%s\",\"role\":\"ROLE_USER\",\"parts\":[{\"text\":%s}]}}";
    if (isOld && isRpc) {
      form =
          "{\"message\":{\"kind\":\"message\",\"messageId\":\"%s\",\"role\":\"user\","
              + "\"parts\":[{\"kind\":\"text\",\"text\":%s}]}}";
    } else if (isOld) {
      form = "{\"message\":{\"messageId\":\"%s\",\"role\":\"ROLE_USER\",\"content\":[{\"text\":%s}]}}";
    }
    return form.formatted(id, said);
  }

  private static boolean isEventStream(HttpResponse<?> response) {
    return typeOf(response).startsWith("text/event-stream");
  }

  private static String typeOf(HttpResponse<?> response) {
    return response.headers().firstValue("content-type").orElse("");
  }

  private static void print(HttpResponse<?> response, String body) {
    Map<String, String> members =
        Map.of("protocol", response.version().name(), "type", typeOf(response), "body", body);
    StringBuilder line = new StringBuilder("{\"status\": " + response.statusCode());
    members.forEach((name, value) -> line.append(", \"" + name + "\": " + quoted(value)));
    OUT.println(line.append("}"));
  }

  private static String quoted(String text) {
    StringBuilder quoted = new StringBuilder("\"");
    for (char each : text.toCharArray()) {
      if (each == '"' || each == '\\') {
        quoted.append('\\').append(each);
      } else if (each < ' ') {
        quoted.append(String.format("\\u%04x", (int) each));
      } else {
        quoted.append(each);
      }
    }
    return quoted.append('"').toString();
  }
}
