import CHybridge
import Foundation

/// A picture for the texts of an artifact's sessions and chats: encoded when it is first read, and once as long as it is there. A
/// chat keeps its messages' pictures by itself.
public final class Picture: Sendable {
  /// What stands for it among the tokens of a prompt, all of it together: a number below 0 for each row that it takes, made of its
  /// pixels, and tokens around them.
  public let ids: [Int64]
  let handle: hybridge_picture

  /// Of any size: it is resized as the model's processor does it. rgb: red, green and blue of each pixel, row by row. Throws
  /// `.invalidPicture` for a model without pictures, other than 3 bytes a pixel, and a picture that is too large, or too long and
  /// narrow; the error's reason says which.
  public init(rgb: [UInt8], width: Int, height: Int, for artifact: Artifact) throws {
    guard width > 0, height > 0, rgb.count == 3 * width * height else { throw HybridgeError(status: .invalidArgument) }
    var handle = hybridge_picture()
    try expectOK(hybridge_picture_open(artifact.model.handle, rgb, width, height, &handle))
    do {
      ids = try filled { hybridge_picture_ids(handle, $0, $1, &$2, nil) }
    } catch {
      hybridge_picture_close(handle)
      throw error
    }
    self.handle = handle
  }

  deinit { hybridge_picture_close(handle) }

  /// How often its parts were encoded, all together.
  public var encodings: Int {
    get throws {
      var count = 0
      var pictured = hybridge_pictured()
      try expectOK(hybridge_picture_ids(handle, nil, 0, &count, &pictured))
      return pictured.encodings
    }
  }
}
