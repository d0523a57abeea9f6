import CHybridge

/// An artifact's `tokenizer.json`: tokens of texts, and texts of tokens.
public final class Tokenizer: Sendable {
  let handle: hybridge_tokenizer

  /// Throws `.unreadableFile`, or `.invalidArtifact` for one that is damaged or of another kind.
  public init(path: String) throws {
    var handle = hybridge_tokenizer()
    try expectOK(hybridge_tokenizer_open(terminated("the path", path), &handle))
    self.handle = handle
  }

  deinit { hybridge_tokenizer_close(handle) }

  /// Returns the tokens of a text. around: with what begins and ends every text, such as bos; plain: texts of special tokens are
  /// text like any other, which is how to read what people type.
  public func encode(_ text: String, around: Bool = true, plain: Bool = false) throws -> [Int64] {
    let reading = Int32((around ? HYBRIDGE_AROUND.rawValue : 0) | (plain ? HYBRIDGE_PLAIN.rawValue : 0))
    var text = text
    return try text.withUTF8 { bytes in
      try bytes.withMemoryRebound(to: CChar.self) { characters in
        try filled {
          hybridge_tokenizer_encode(handle, characters.baseAddress, characters.count, reading, nil, 0, $0, nil, $1, &$2)
        }
      }
    }
  }

  /// Returns the text of tokens, without special ones unless they are wanted.
  public func decode(_ tokens: [Int64], skipSpecial: Bool = true) throws -> String {
    var size = 0
    let skip: Int32 = skipSpecial ? 1 : 0
    try expectOK(hybridge_tokenizer_decode(handle, tokens, tokens.count, skip, nil, 0, &size))
    var bytes = [CChar](repeating: 0, count: size)
    try expectOK(hybridge_tokenizer_decode(handle, tokens, tokens.count, skip, &bytes, bytes.count, &size))
    return String(decoding: bytes.map { UInt8(bitPattern: $0) }, as: UTF8.self)
  }
}

/// The text of tokens that come one after the other; a character is held back until all of it is there. For one thread.
public final class TextStream {
  private let handle: hybridge_text

  public init(_ tokenizer: Tokenizer, skipSpecial: Bool = true) throws {
    var handle = hybridge_text()
    try expectOK(hybridge_text_open(tokenizer.handle, skipSpecial ? 1 : 0, &handle))
    self.handle = handle
  }

  deinit { hybridge_text_close(handle) }

  /// Returns what a token adds.
  public func push(_ token: Int64) throws -> String { try piece { hybridge_text_push(handle, token, $0, $1) } }

  /// Returns what is still held back.
  public func finish() throws -> String { try piece { hybridge_text_finish(handle, $0, $1) } }

  private func piece(
    _ body: (UnsafeMutablePointer<UnsafePointer<CChar>?>, UnsafeMutablePointer<Int>) -> hybridge_status
  ) throws -> String {
    var bytes: UnsafePointer<CChar>?
    var size = 0
    try expectOK(body(&bytes, &size))
    return String(decoding: UnsafeRawBufferPointer(start: bytes, count: size), as: UTF8.self)
  }
}
