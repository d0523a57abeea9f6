import CHybridge

/// Counts of one generation: its tokens, draft tokens proposed and accepted, and blocks verified and not accepted whole.
public struct Generated: Equatable, Sendable {
  public let tokens, proposed, accepted, verifies, rollbacks: Int

  init(_ counts: hybridge_generated) {
    (tokens, proposed, accepted) = (counts.tokens, counts.proposed, counts.accepted)
    (verifies, rollbacks) = (counts.verifies, counts.rollbacks)
  }
}

/// How tokens are drawn: a temperature of 0 is greedy, a `topK` of 0 and the other defaults leave the distribution as it is. Of
/// the same seed comes the same text, with every drafter; without one a seed is drawn. hybridge.h says what each option does.
public struct Sampling: Equatable, Sendable {
  public var temperature, topP, minP, repetitionPenalty: Double
  public var topK: Int
  public var seed: UInt64?
  public var presencePenalty = 0.0, frequencyPenalty = 0.0, topNSigma = 0.0, dryMultiplier = 0.0, dryBase = 1.75
  public var repeatLastN = -1, dryAllowedLength = 2
  public var dryBreakers: [Int64] = []
  /// Numbers from -100 to 100 that are added to the logits of tokens.
  public var logitBias: [Int64: Double] = [:]

  public init(
    temperature: Double = 0, topK: Int = 0, topP: Double = 1, minP: Double = 0, repetitionPenalty: Double = 1,
    seed: UInt64? = nil
  ) {
    (self.temperature, self.topK, self.topP, self.minP) = (temperature, topK, topP, minP)
    (self.repetitionPenalty, self.seed) = (repetitionPenalty, seed)
  }

  /// Calls `body` with what C takes, which lasts as long as the call.
  func withCode<T>(_ body: (UnsafePointer<hybridge_sampling>) throws -> T) throws -> T {
    guard topK >= 0, dryAllowedLength >= 0 else { throw HybridgeError(status: .invalidArgument) }
    var code = hybridge_sampling_defaults()
    (code.temperature, code.top_p, code.min_p) = (temperature, topP, minP)
    (code.repetition_penalty, code.top_k) = (repetitionPenalty, topK)
    (code.seed, code.has_seed) = (seed ?? 0, seed == nil ? 0 : 1)
    (code.presence_penalty, code.frequency_penalty) = (presencePenalty, frequencyPenalty)
    (code.repeat_last_n, code.top_n_sigma) = (Int64(repeatLastN), topNSigma)
    (code.dry_multiplier, code.dry_base, code.dry_allowed_length) = (dryMultiplier, dryBase, dryAllowedLength)
    let biases = logitBias.map { hybridge_bias(token: $0.key, bias: $0.value) }
    return try dryBreakers.withUnsafeBufferPointer { breakers in
      try biases.withUnsafeBufferPointer { biases in
        (code.dry_breakers, code.dry_breaker_count) = (breakers.baseAddress, breakers.count)
        (code.logit_bias, code.bias_count) = (biases.baseAddress, biases.count)
        return try withUnsafePointer(to: &code, body)
      }
    }
  }
}

/// Where draft tokens come from. Greedily and with a seed the text is the same with each of them.
public enum Drafter: Sendable {
  /// Nowhere: plain decoding.
  case none
  /// The text so far.
  case promptLookup
  /// Prompt lookup, and the drafter inside the model if it has one: each round asks the one that promises most, or none.
  case auto
  /// The drafter inside the model, where its `draftLen` is not 0.
  case own
  /// A smaller model over the same tokens, exported with snapshot slots; a session keeps a session of it while it is given the
  /// same one.
  case model(Model)

  var code: hybridge_drafter {
    switch self {
    case .none: return HYBRIDGE_NO_DRAFTER
    case .promptLookup: return HYBRIDGE_PROMPT_LOOKUP
    case .own: return HYBRIDGE_OWN_DRAFTER
    case .auto: return HYBRIDGE_AUTO_DRAFTER
    case .model: return HYBRIDGE_DRAFT_MODEL
    }
  }

  var draft: hybridge_model {
    if case .model(let model) = self { return model.handle }
    return hybridge_model()
  }
}

/// Decides what may come after a text: it makes those of the logits minus infinity whose tokens may not. It is asked for each
/// token, draft tokens that are verified included. One that leaves none ends the generation with `.invalidGrammar`.
public typealias Mask = (_ text: UnsafeBufferPointer<Int64>, _ logits: UnsafeMutableBufferPointer<Float>) throws -> Void

/// Carries closures through C, and what they throw around it.
final class Callbacks {
  let body: (Int64) throws -> Bool
  let mask: Mask?
  var thrown: Error?

  init(_ body: @escaping (Int64) throws -> Bool, _ mask: Mask?) { (self.body, self.mask) = (body, mask) }
}

func take(_ token: Int64, _ user: UnsafeMutableRawPointer?) -> Int32 {
  let callbacks = Unmanaged<Callbacks>.fromOpaque(user!).takeUnretainedValue()
  if callbacks.thrown != nil { return 0 }  // by the mask
  do {
    return try callbacks.body(token) ? 1 : 0
  } catch {
    callbacks.thrown = error
    return 0
  }
}

/// Where the mask throws, no token may come.
func apply(
  _ text: UnsafePointer<Int64>?, _ count: Int, _ logits: UnsafeMutablePointer<Float>?, _ size: Int,
  _ user: UnsafeMutableRawPointer?
) {
  let callbacks = Unmanaged<Callbacks>.fromOpaque(user!).takeUnretainedValue()
  let row = UnsafeMutableBufferPointer(start: logits, count: size)
  do {
    if callbacks.thrown == nil { try callbacks.mask?(UnsafeBufferPointer(start: text, count: count), row) }
  } catch {
    callbacks.thrown = error
  }
  if callbacks.thrown != nil {
    for i in row.indices { row[i] = -.infinity }
  }
}
