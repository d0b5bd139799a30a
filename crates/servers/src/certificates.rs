//! Certificates for tests, made when the test runs. They protect nothing.

use std::fs;
use std::path::{Path, PathBuf};

use ring::rand::SystemRandom;
use ring::signature::{ECDSA_P256_SHA256_ASN1_SIGNING, EcdsaKeyPair, KeyPair as _};
use tempfile::TempDir;

use crate::TlsFiles;

/// A certificate authority, and a folder with its files, which is removed on drop.
///
/// `ca.pem` is the authority. `node.pem` is a certificate that the authority has signed for 127.0.0.1 and localhost, for
/// servers and for clients; its key is `node.key`. All certificates are valid from 2020 to 2120, so they also work on a
/// machine whose clock is wrong.
#[derive(Debug)]
pub struct Authority {
    key: Key,
    pem: String,
    folder: TempDir,
}

/// A certificate and its key, in PEM.
#[derive(Clone, Debug)]
pub struct Identity {
    /// The certificate.
    pub certificate: String,
    /// The key of the certificate.
    pub key: String,
}

/// A certificate that its own key has signed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Alone {
    /// A valid certificate for 127.0.0.1.
    Valid,
    /// The certificate claims to be that of an authority.
    Authority,
    /// The certificate has no names.
    Nameless,
}

#[derive(Debug)]
struct Key {
    pair: EcdsaKeyPair,
    pkcs8: Vec<u8>,
}

#[expect(clippy::new_without_default, reason = "it makes a key and writes files")]
impl Authority {
    /// Makes an authority and its files.
    ///
    /// # Panics
    /// If the machine gives no random numbers, or the files cannot be written.
    pub fn new() -> Self {
        let (key, folder) = (Key::new(), tempfile::tempdir().expect("a temporary folder"));
        let pem =
            pem("CERTIFICATE", &certificate(("authority", &key), ("authority", &key), true, false));
        let authority = Self { key, pem, folder };
        authority.write("ca.pem", authority.pem());
        let Identity { certificate, key } = authority.issue();
        authority.write("node.pem", &certificate);
        authority.write("node.key", &key);
        authority
    }

    /// The authority's certificate in PEM, the content of `ca.pem`.
    pub fn pem(&self) -> &str {
        &self.pem
    }

    /// The folder of the files.
    pub fn folder(&self) -> &Path {
        self.folder.path()
    }

    /// The path of a file in the folder.
    pub fn file(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// Writes a file into the folder.
    ///
    /// # Panics
    /// If the file cannot be written.
    pub fn write(&self, name: &str, text: &str) {
        fs::write(self.file(name), text).expect("the folder can be written");
    }

    /// The files of a server with the certificate `node.pem`. `client_auth`: it requires a certificate of its clients.
    pub fn server(&self, client_auth: bool) -> TlsFiles {
        let [cert, key, ca] = ["node.pem", "node.key", "ca.pem"].map(|name| self.file(name));
        TlsFiles { cert, key, ca, client_auth }
    }

    /// Signs a further certificate with a key of its own.
    pub fn issue(&self) -> Identity {
        let key = Key::new();
        let certificate = certificate(("node", &key), ("authority", &self.key), false, true);
        Identity { certificate: pem("CERTIFICATE", &certificate), key: key.pem() }
    }
}

impl Identity {
    /// A certificate that no authority has signed.
    pub fn alone(kind: Alone) -> Self {
        let key = Key::new();
        let (is_authority, is_named) = (kind == Alone::Authority, kind != Alone::Nameless);
        let certificate = certificate(("node", &key), ("node", &key), is_authority, is_named);
        Self { certificate: pem("CERTIFICATE", &certificate), key: key.pem() }
    }
}

impl Key {
    fn new() -> Self {
        let (algorithm, random) = (&ECDSA_P256_SHA256_ASN1_SIGNING, SystemRandom::new());
        let pkcs8 = EcdsaKeyPair::generate_pkcs8(algorithm, &random).expect("random numbers");
        let pair = EcdsaKeyPair::from_pkcs8(algorithm, pkcs8.as_ref(), &random);
        Self { pair: pair.expect("a key that was just made"), pkcs8: pkcs8.as_ref().to_vec() }
    }

    /// A number that no other key has: the end of the public key.
    fn number(&self) -> u64 {
        let bytes = self.pair.public_key().as_ref().last_chunk();
        u64::from_be_bytes(*bytes.expect("a key has 65 bytes"))
    }

    fn pem(&self) -> String {
        pem("PRIVATE KEY", &self.pkcs8)
    }
}

/// The tags of DER.
const BOOLEAN: u8 = 0x01;
const INTEGER: u8 = 0x02;
const BIT_STRING: u8 = 0x03;
const OCTET_STRING: u8 = 0x04;
const OID: u8 = 0x06;
const UTF8: u8 = 0x0c;
const GENERALIZED_TIME: u8 = 0x18;
const UTC_TIME: u8 = 0x17;
const SEQUENCE: u8 = 0x30;
const SET: u8 = 0x31;

/// ecdsa-with-SHA256, id-ecPublicKey, prime256v1, commonName, basicConstraints, subjectAltName.
const ECDSA_SHA256: &[u8] = &[0x2a, 0x86, 0x48, 0xce, 0x3d, 4, 3, 2];
const EC_KEY: &[u8] = &[0x2a, 0x86, 0x48, 0xce, 0x3d, 2, 1];
const P256: &[u8] = &[0x2a, 0x86, 0x48, 0xce, 0x3d, 3, 1, 7];
const COMMON_NAME: &[u8] = &[0x55, 4, 3];
const BASIC_CONSTRAINTS: &[u8] = &[0x55, 0x1d, 19];
const SUBJECT_ALT_NAME: &[u8] = &[0x55, 0x1d, 17];

/// Makes a certificate in DER (RFC 5280). It names the subject and has its public key; the issuer signs it.
fn certificate(
    subject: (&str, &Key),
    issuer: (&str, &Key),
    is_authority: bool,
    is_named: bool,
) -> Vec<u8> {
    let (key, signer) = (subject.1, issuer.1);
    let algorithm = der(SEQUENCE, &[&der(OID, &[ECDSA_SHA256])]);
    let name = |(role, key): (&str, &Key)| {
        // No two keys have one name, because OpenSSL finds the signer by its name.
        let text = format!("quorlock test {role} {:016x}", key.number());
        let text = der(UTF8, &[text.as_bytes()]);
        der(SEQUENCE, &[&der(SET, &[&der(SEQUENCE, &[&der(OID, &[COMMON_NAME]), &text])])])
    };
    let validity =
        [der(UTC_TIME, &[b"200101000000Z"]), der(GENERALIZED_TIME, &[b"21200101000000Z"])];
    let key_kind = der(SEQUENCE, &[&der(OID, &[EC_KEY]), &der(OID, &[P256])]);
    let public_key = der(BIT_STRING, &[&[0], key.pair.public_key().as_ref()]);
    let extension = |oid: &[u8], value: Vec<u8>| {
        let critical = if oid == BASIC_CONSTRAINTS { der(BOOLEAN, &[&[0xff]]) } else { Vec::new() };
        der(SEQUENCE, &[&der(OID, &[oid]), &critical, &der(OCTET_STRING, &[&value])])
    };
    let authority = if is_authority { der(BOOLEAN, &[&[0xff]]) } else { Vec::new() };
    let mut extensions = extension(BASIC_CONSTRAINTS, der(SEQUENCE, &[&authority]));
    if is_named {
        let names = [der(0x87, &[&[127, 0, 0, 1]]), der(0x82, &[b"localhost"])];
        extensions.extend(extension(SUBJECT_ALT_NAME, der(SEQUENCE, &[&names[0], &names[1]])));
    }
    // The first byte keeps the number positive.
    let serial = [&[1][..], &key.number().to_be_bytes()].concat();
    let unsigned = der(
        SEQUENCE,
        &[
            &der(0xa0, &[&der(INTEGER, &[&[2]])]),
            &der(INTEGER, &[&serial]),
            &algorithm,
            &name(issuer),
            &der(SEQUENCE, &[&validity[0], &validity[1]]),
            &name(subject),
            &der(SEQUENCE, &[&key_kind, &public_key]),
            &der(0xa3, &[&der(SEQUENCE, &[&extensions])]),
        ],
    );
    let signature = signer.pair.sign(&SystemRandom::new(), &unsigned).expect("random numbers");
    let signature = der(BIT_STRING, &[&[0], signature.as_ref()]);
    der(SEQUENCE, &[&unsigned, &algorithm, &signature])
}

/// One value of DER. The content is shorter than 64 KiB.
fn der(tag: u8, content: &[&[u8]]) -> Vec<u8> {
    let content = content.concat();
    let [.., high, low] = content.len().to_be_bytes();
    let mut value = match (high, low) {
        (0, 0..0x80) => vec![tag, low],
        (0, _) => vec![tag, 0x81, low],
        _ => vec![tag, 0x82, high, low],
    };
    value.extend(content);
    value
}

/// The text of PEM: base64 in lines of 64 characters.
fn pem(label: &str, bytes: &[u8]) -> String {
    const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut text = format!("-----BEGIN {label}-----\n");
    for line in bytes.chunks(48) {
        for group in line.chunks(3) {
            let mut three = [0; 3];
            three[..group.len()].copy_from_slice(group);
            let bits = u32::from_be_bytes([0, three[0], three[1], three[2]]);
            let digits = [18, 12, 6, 0].map(|shift| DIGITS[(bits >> shift) as usize & 63]);
            let (used, rest) = digits.split_at(group.len() + 1);
            text.extend(used.iter().map(|&digit| char::from(digit)));
            text.extend(rest.iter().map(|_| '='));
        }
        text.push('\n');
    }
    text + &format!("-----END {label}-----\n")
}
