import CHybridge
import Foundation

/// An artifact's folder: its program, its tokenizer, and how its chats are written. Open it once for any number of chats.
public final class Artifact: Sendable {
  /// Its program, for sessions of tokens and pictures.
  public let model: Model
  let handle: hybridge_artifact

  /// context: most tokens of a text, up to what the artifact holds, which is the default. Throws `.unreadableFile`,
  /// `.invalidArtifact` or `.missingOperator`, and `.invalidArgument` for a context that the artifact does not hold; the error's
  /// reason says what is wrong.
  public init(folder: String, context: Int? = nil) throws {
    var handle = hybridge_artifact()
    try expectOK(hybridge_artifact_open(terminated("the path", folder), &handle))
    do {
      var model = hybridge_model()
      try expectOK(hybridge_artifact_model(handle, &model))
      self.model = try Model(model, context: context)
    } catch {
      hybridge_artifact_close(handle)
      throw error
    }
    self.handle = handle
  }

  /// Returns a picture for chats and sessions of this artifact; throws like `Picture.init`.
  public func picture(rgb: [UInt8], width: Int, height: Int) throws -> Picture {
    try Picture(rgb: rgb, width: width, height: height, for: self)
  }

  deinit { hybridge_artifact_close(handle) }

  /// How the model is meant to be sampled, for its answers. Greedy if its generation_config.json does not say.
  public var sampling: Sampling {
    get throws {
      var found = hybridge_sampling_defaults()
      try expectOK(hybridge_artifact_sampling(handle, &found))
      var sampling = Sampling(
        temperature: found.temperature, topK: Int(found.top_k), topP: found.top_p, minP: found.min_p,
        repetitionPenalty: found.repetition_penalty)
      (sampling.presencePenalty, sampling.frequencyPenalty) = (found.presence_penalty, found.frequency_penalty)
      return sampling
    }
  }

  /// Returns the tokenizer, which is the artifact's own. Throws `.invalidArtifact` without one.
  func tokenizer() throws -> hybridge_tokenizer {
    var found = hybridge_tokenizer()
    try expectOK(hybridge_artifact_tokenizer(handle, &found))
    return found
  }

  /// Returns a chat with a state of its own. system: what the model is told before the first message. checkpointBytes: most
  /// memory for states to go back to. Throws `.invalidArtifact` if the model has no chat template, `.invalidTemplate` if it
  /// refuses the system's message, `.unsupported` if it has no switch for thinking, and `.invalidArgument` for variables and
  /// tools that are not what they must be.
  /// variables: more of them for the chat template, as a JSON object such as `{"reasoning_effort": "low"}`. tools: that the model
  /// may call, a list in JSON as OpenAI's API has it; their results go to `Chat.giveResults`.
  public func chat(
    system: String = "", thinking: Thinking = .asUsual, checkpointBytes: Int = 256 << 20, variables: String? = nil, tools: String? = nil
  ) throws -> Chat {
    guard checkpointBytes >= 0 else { throw HybridgeError(status: .invalidArgument) }
    let given = [
      try terminated("the system prompt", system), try variables.map { try terminated("the variables", $0) },
      try tools.map { try terminated("the tools", $0) },
    ].map { $0.map { strdup($0) } ?? nil }
    defer { given.forEach { free($0) } }
    var chat = hybridge_chat()
    var options = hybridge_chat_options_defaults()
    (options.system, options.variables, options.tools) = (constant(given[0]), constant(given[1]), constant(given[2]))
    (options.thinking, options.checkpoint_bytes) = (thinking.code, checkpointBytes)
    try expectOK(hybridge_chat_open(handle, &options, &chat))
    return Chat(chat)
  }
}

/// Whether the model thinks before it answers; as usual: as its chat template does by itself.
public enum Thinking: Sendable {
  case asUsual, on, off

  var code: hybridge_thinking {
    switch self {
    case .asUsual: return HYBRIDGE_THINKING_AS_USUAL
    case .on: return HYBRIDGE_THINKING_ON
    case .off: return HYBRIDGE_THINKING_OFF
    }
  }
}

/// What ended an answer: the model, a stop string, the most tokens or a full context, or the caller.
public enum Ending: UInt32, Sendable { case byModel, byStop, byLength, byCaller }

/// A call of a tool; arguments: a JSON object.
public struct Call: Equatable, Sendable {
  public let id, name, arguments: String
}

/// A message of a chat; role: `system`, `user`, `assistant` or `tool`. calls: of an answer; of a tool's message the call
/// that it answers.
public struct Message: Equatable, Sendable {
  public let role, content, reasoning: String
  public let calls: [Call]
}

/// What a token adds to an answer, in whole characters, to what is said or to the reasoning before it; and complete calls.
public struct Piece: Equatable, Sendable {
  public let content, reasoning: String
  public let calls: [Call]
}

/// What an answer took: tokens that were read for it, and those that were known. droppedMessages: the oldest ones, which left no
/// room for it.
public struct Answer: Equatable, Sendable {
  public let ending: Ending
  public let promptTokens, cachedTokens, droppedMessages: Int
  public let generated: Generated
}

/// A conversation: words in, words out. Its state stays between turns; `undo` and `retry` read nothing again.
///
/// Calls block, and wait for one that runs; `stream` runs an answer off the caller's thread. `cancel` alone never waits. Where an
/// answer fails or is cancelled before its first token, nothing has changed; after that, what was said stays.
public final class Chat: @unchecked Sendable {
  private let handle: hybridge_chat
  private let turn = NSLock()

  init(_ handle: hybridge_chat) { self.handle = handle }

  deinit { hybridge_chat_close(handle) }

  /// The conversation so far.
  public var messages: [Message] {
    get throws {
      turn.lock()
      defer { turn.unlock() }
      var count = 0
      try expectOK(hybridge_chat_messages(handle, nil, 0, &count, nil))
      var found = [hybridge_message](repeating: hybridge_message(), count: count)
      try expectOK(hybridge_chat_messages(handle, &found, found.count, &count, nil))
      return found.map {
        Message(
          role: String(cString: $0.role), content: text($0.content, $0.content_size),
          reasoning: text($0.reasoning, $0.reasoning_size), calls: calls($0.calls, $0.call_count))
      }
    }
  }

  /// Tokens that still fit.
  public var room: Int {
    get throws {
      var count = 0
      var room: Int64 = 0
      try call { hybridge_chat_messages(handle, nil, 0, &count, &room) }
      return Int(room)
    }
  }

  /// Answers a message; what `onPiece` throws ends the answer, and is thrown on. maxNewTokens: nil until the model ends its answer, or
  /// the context is full. sampling: nil for the model's own. stopAfterReasoning: stops end the answer, but not the reasoning before
  /// it. grammar: what the answer must be; it begins after the reasoning of a model that thinks. pictures: before the message. toolChoice, of a chat with tools: `auto` or nil if the model
  /// may call them, `none`, `required`, or the name of one.
  @discardableResult
  public func send(
    _ message: String, maxNewTokens: Int? = nil, drafter: Drafter = .auto, sampling: Sampling? = nil,
    stops: [String] = [], grammar: Grammar? = nil, pictures: [Picture] = [], toolChoice: String? = nil,
    stopAfterReasoning: Bool = false, onPiece: (Piece) throws -> Bool
  ) throws -> Answer {
    var message = message
    let handles = pictures.map { $0.handle }
    return try message.withUTF8 { bytes in
      try bytes.withMemoryRebound(to: CChar.self) { words in
        try answer(maxNewTokens, drafter, sampling, stops, stopAfterReasoning, grammar, toolChoice, onPiece) {
          let shown = hybridge_chat_show(handle, handles, handles.count)
          guard shown == HYBRIDGE_OK else { return shown }
          // An empty message has no bytes, and is one all the same.
          return hybridge_chat_send(handle, words.baseAddress ?? emptyWords, words.count, $0, $1, stops.count, takePiece, $2, $3)
        }
      }
    }
  }

  /// Answers the results of the tools that the last answer called, one for each of its calls, in their order; see `send`.
  @discardableResult
  public func giveResults(
    _ results: [String], maxNewTokens: Int? = nil, drafter: Drafter = .auto, sampling: Sampling? = nil,
    stops: [String] = [], grammar: Grammar? = nil, toolChoice: String? = nil, stopAfterReasoning: Bool = false,
    onPiece: (Piece) throws -> Bool
  ) throws -> Answer {
    let copies = results.map { ($0.utf8.count, strdup($0)) }
    defer { copies.forEach { free($0.1) } }
    let given = copies.map { hybridge_result(content: constant($0.1), size: $0.0) }
    return try answer(maxNewTokens, drafter, sampling, stops, stopAfterReasoning, grammar, toolChoice, onPiece) {
      hybridge_chat_give_results(handle, given, given.count, $0, $1, stops.count, takePiece, $2, $3)
    }
  }

  /// Answers the last message, or the last results, again.
  @discardableResult
  public func retry(
    maxNewTokens: Int? = nil, drafter: Drafter = .auto, sampling: Sampling? = nil, stops: [String] = [],
    grammar: Grammar? = nil, toolChoice: String? = nil, stopAfterReasoning: Bool = false,
    onPiece: (Piece) throws -> Bool
  ) throws -> Answer {
    try answer(maxNewTokens, drafter, sampling, stops, stopAfterReasoning, grammar, toolChoice, onPiece) {
      hybridge_chat_retry(handle, $0, $1, stops.count, takePiece, $2, $3)
    }
  }

  /// The pieces of `send`, on a thread of their own. Where the task that reads them is cancelled, so is the answer.
  ///
  ///     for try await piece in chat.stream("Hello") { show(piece.content) }
  public func stream(
    _ message: String, maxNewTokens: Int? = nil, drafter: Drafter = .auto, sampling: Sampling? = nil,
    stops: [String] = [], grammar: Grammar? = nil, pictures: [Picture] = [], toolChoice: String? = nil,
    stopAfterReasoning: Bool = false
  ) -> AsyncThrowingStream<Piece, Error> {
    pieces {
      try self.send(
        message, maxNewTokens: maxNewTokens, drafter: drafter, sampling: sampling, stops: stops, grammar: grammar,
        pictures: pictures, toolChoice: toolChoice, stopAfterReasoning: stopAfterReasoning, onPiece: $0)
    }
  }

  /// The pieces of `giveResults`, likewise.
  public func stream(
    results: [String], maxNewTokens: Int? = nil, drafter: Drafter = .auto, sampling: Sampling? = nil,
    stops: [String] = [], grammar: Grammar? = nil, toolChoice: String? = nil,
    stopAfterReasoning: Bool = false
  ) -> AsyncThrowingStream<Piece, Error> {
    pieces {
      try self.giveResults(
        results, maxNewTokens: maxNewTokens, drafter: drafter, sampling: sampling, stops: stops, grammar: grammar,
        toolChoice: toolChoice, stopAfterReasoning: stopAfterReasoning, onPiece: $0)
    }
  }

  private func pieces(
    _ answer: @escaping @Sendable ((Piece) throws -> Bool) throws -> Answer
  ) -> AsyncThrowingStream<Piece, Error> {
    AsyncThrowingStream { continuation in
      continuation.onTermination = { [weak self] _ in self?.cancel() }
      DispatchQueue.global(qos: .userInitiated).async {
        do {
          _ = try answer { piece in
            if case .terminated = continuation.yield(piece) { return false }
            return true
          }
          continuation.finish()
        } catch let error as HybridgeError where error.status == .cancelled {
          continuation.finish(throwing: CancellationError())
        } catch {
          continuation.finish(throwing: error)
        }
      }
    }
  }

  /// Goes on with the last answer, such as one that ended by its length; `onPiece` gets what is new.
  @discardableResult
  public func continueAnswer(
    maxNewTokens: Int? = nil, drafter: Drafter = .auto, sampling: Sampling? = nil, stops: [String] = [],
    stopAfterReasoning: Bool = false, onPiece: (Piece) throws -> Bool
  ) throws -> Answer {
    try answer(maxNewTokens, drafter, sampling, stops, stopAfterReasoning, nil, nil, onPiece) {
      hybridge_chat_continue(handle, $0, $1, stops.count, takePiece, $2, $3)
    }
  }

  /// Tells the model something else before the first message; an empty text for nothing.
  public func setSystem(_ system: String) throws {
    try call { hybridge_chat_set_system(handle, system, system.utf8.count) }
  }

  /// Takes the last message and its answer back, with all calls and results between them.
  public func undo() throws { try call { hybridge_chat_undo(handle) } }

  /// Begins anew.
  public func reset() throws { try call { hybridge_chat_reset(handle) } }

  /// Writes the conversation and the state; the file appears whole or not at all.
  public func save(_ path: String) throws {
    let path = try terminated("the path", path)
    try call { hybridge_chat_save(handle, path) }
  }

  /// Goes on with a saved conversation of this artifact.
  public func load(_ path: String) throws {
    let path = try terminated("the path", path)
    try call { hybridge_chat_load(handle, path) }
  }

  /// Ends the answer that runs or waits.
  public func cancel() { hybridge_chat_cancel(handle) }

  private typealias Ask = (
    UnsafePointer<hybridge_generation>, UnsafePointer<UnsafePointer<CChar>?>, UnsafeMutableRawPointer,
    UnsafeMutablePointer<hybridge_answer>
  ) -> hybridge_status

  private func answer(
    _ maxNewTokens: Int?, _ drafter: Drafter, _ sampling: Sampling?, _ stops: [String],
    _ stopAfterReasoning: Bool, _ grammar: Grammar?, _ toolChoice: String?, _ onPiece: (Piece) throws -> Bool, _ ask: Ask
  ) throws -> Answer {
    guard maxNewTokens ?? 1 > 0 else { throw HybridgeError(status: .invalidArgument) }
    var done = hybridge_answer()
    let copies = try stops.map { try terminated("a stop string", $0) }.map { strdup($0) }
    defer { copies.forEach { free($0) } }
    let ends = copies.map { UnsafePointer<CChar>($0) }
    let choice = try toolChoice.map { strdup(try terminated("the choice of a tool", $0)) } ?? nil
    defer { free(choice) }
    try withoutActuallyEscaping(onPiece) { onPiece in
      let callback = PieceCallback(onPiece)
      func asking(_ draws: UnsafePointer<hybridge_sampling>?) throws {
        try call {
          var options = hybridge_generation_defaults()
          (options.max_new_tokens, options.drafter) = (maxNewTokens ?? Int.max, drafter.code)
          options.stop_after_reasoning = stopAfterReasoning ? 1 : 0
          (options.draft, options.sampling, options.grammar) = (drafter.draft, draws, grammar?.handle ?? hybridge_grammar())
          options.tool_choice = constant(choice)
          // An array without elements has no address to give.
          return (ends + [nil]).withUnsafeBufferPointer {
            ask(&options, $0.baseAddress!, Unmanaged.passUnretained(callback).toOpaque(), &done)
          }
        }
      }
      if let sampling { try sampling.withCode { try asking($0) } } else { try asking(nil) }  // the model's own
      if let thrown = callback.thrown { throw thrown }
    }
    return Answer(
      ending: Ending(rawValue: UInt32(done.ending.rawValue)) ?? .byCaller, promptTokens: done.prompt_tokens,
      cachedTokens: done.cached_tokens, droppedMessages: done.dropped_messages, generated: Generated(done.generated))
  }

  private func call(_ body: () -> hybridge_status) throws {
    turn.lock()
    defer { turn.unlock() }
    try expectOK(body())
  }
}

private let emptyWords = UnsafePointer(strdup("")!)

/// Carries a closure through C, and what it throws around it.
private final class PieceCallback {
  let body: (Piece) throws -> Bool
  var thrown: Error?

  init(_ body: @escaping (Piece) throws -> Bool) { self.body = body }
}

private func takePiece(_ piece: UnsafePointer<hybridge_piece>?, _ user: UnsafeMutableRawPointer?) -> Int32 {
  let callback = Unmanaged<PieceCallback>.fromOpaque(user!).takeUnretainedValue()
  let given = piece!.pointee
  do {
    let wanted = try callback.body(
      Piece(
        content: text(given.content, given.content_size), reasoning: text(given.reasoning, given.reasoning_size),
        calls: calls(given.calls, given.call_count)))
    return wanted ? 1 : 0
  } catch {
    callback.thrown = error
    return 0
  }
}

private func text(_ bytes: UnsafePointer<CChar>?, _ size: Int) -> String {
  String(decoding: UnsafeRawBufferPointer(start: bytes, count: size), as: UTF8.self)
}

private func calls(_ calls: UnsafePointer<hybridge_call>?, _ count: Int) -> [Call] {
  UnsafeBufferPointer(start: calls, count: count).map {
    Call(id: String(cString: $0.id), name: text($0.name, $0.name_size), arguments: text($0.arguments, $0.arguments_size))
  }
}

private func constant(_ bytes: UnsafeMutablePointer<CChar>?) -> UnsafePointer<CChar>? { UnsafePointer(bytes) }
