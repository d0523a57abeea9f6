import CHybridge

/// What an answer or a text must be: JSON that fits a schema, or what a regular expression matches as a whole. It serves any number
/// of answers, in any threads.
///
/// JSON is on one line, with the properties in the schema's order; docs/structured.md lists the keywords. An answer that is cut off
/// by its length is not complete.
public final class Grammar: Sendable {
  let handle: hybridge_grammar

  /// Throws `.invalidGrammar` for a schema that cannot be followed; the error's reason says why.
  public convenience init(jsonSchema schema: String, for artifact: Artifact) throws {
    try self.init(HYBRIDGE_JSON_SCHEMA, schema, artifact.tokenizer())
  }

  /// Of a regular expression in Rust's syntax; throws likewise.
  public convenience init(regex pattern: String, for artifact: Artifact) throws {
    try self.init(HYBRIDGE_REGEX, pattern, artifact.tokenizer())
  }

  public convenience init(jsonSchema schema: String, for tokenizer: Tokenizer) throws {
    try self.init(HYBRIDGE_JSON_SCHEMA, schema, tokenizer.handle)
  }

  public convenience init(regex pattern: String, for tokenizer: Tokenizer) throws {
    try self.init(HYBRIDGE_REGEX, pattern, tokenizer.handle)
  }

  private init(_ kind: hybridge_grammar_kind, _ text: String, _ tokenizer: hybridge_tokenizer) throws {
    var made = hybridge_grammar()
    try text.withCString { bytes in try expectOK(hybridge_grammar_open(tokenizer, kind, bytes, text.utf8.count, &made)) }
    handle = made
  }

  deinit { hybridge_grammar_close(handle) }
}
