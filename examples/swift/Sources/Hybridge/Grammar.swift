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
    try self.init(schema, artifact.tokenizer()) { hybridge_grammar_json_schema($0, $1, $2, $3) }
  }

  /// Of a regular expression in Rust's syntax; throws likewise.
  public convenience init(regex pattern: String, for artifact: Artifact) throws {
    try self.init(pattern, artifact.tokenizer()) { hybridge_grammar_regex($0, $1, $2, $3) }
  }

  public convenience init(jsonSchema schema: String, for tokenizer: Tokenizer) throws {
    try self.init(schema, tokenizer.handle) { hybridge_grammar_json_schema($0, $1, $2, $3) }
  }

  public convenience init(regex pattern: String, for tokenizer: Tokenizer) throws {
    try self.init(pattern, tokenizer.handle) { hybridge_grammar_regex($0, $1, $2, $3) }
  }

  private init(
    _ text: String, _ tokenizer: hybridge_tokenizer,
    _ read: (hybridge_tokenizer, UnsafePointer<CChar>?, Int, UnsafeMutablePointer<hybridge_grammar>?) -> hybridge_status
  ) throws {
    var made: hybridge_grammar = 0
    try text.withCString { bytes in try expectOK(read(tokenizer, bytes, text.utf8.count, &made)) }
    handle = made
  }

  deinit { hybridge_grammar_close(handle) }
}
