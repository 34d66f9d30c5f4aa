//! TLS 1.3 with raw public keys (RFC 7250): both sides show an Ed25519 key and prove to have it.
//!
//! - There are no certificates, so none expires, and no authority that could issue a false one.
//! - Sessions are never resumed: every connection asks again whether the key is allowed.
//! - The application protocol names the version, so nodes of different versions do not connect.

use super::key::{NodeId, NodeKey};
use anabranch_dsl::{Diagnostic, ErrorKind, Result};
use quinn::crypto::rustls::{QuicClientConfig, QuicServerConfig};
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::client::{AlwaysResolvesClientRawPublicKeys, Resumption};
use rustls::crypto::{CryptoProvider, WebPkiSupportedAlgorithms, ring, verify_tls13_signature_with_raw_key};
use rustls::pki_types::{CertificateDer, PrivatePkcs8KeyDer, ServerName, SubjectPublicKeyInfoDer, UnixTime};
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::server::{AlwaysResolvesServerRawPublicKeys, NoServerSessionStorage};
use rustls::sign::CertifiedKey;
use rustls::{CipherSuite, DigitallySignedStruct, DistinguishedName, Error, SignatureScheme};
use std::fmt;
use std::sync::Arc;

/// The protocol and its version. Nodes connect only if theirs is the same.
pub(super) const PROTOCOL: &str = concat!("anabranch/", protocol_version!());

/// The label of the key material that binds proofs to a TLS session.
pub(super) const EXPORT_LABEL: &[u8] = b"EXPORTER-anabranch-join";

/// Decides whether a connection to or from the node with this key may go on.
pub(super) type CheckNode = Arc<dyn Fn(NodeId) -> Result<(), String> + Send + Sync>;

/// The TLS settings of a node.
pub(super) struct Tls {
    provider: Arc<CryptoProvider>,
    key: Arc<CertifiedKey>,
    protocol: Vec<u8>,
}

impl Tls {
    pub(super) fn new(key: &NodeKey, protocol: &str) -> Result<Tls> {
        let mut provider = ring::default_provider();
        // AES in hardware is twice as fast as ChaCha20, which stays for processors without it.
        let order = [
            CipherSuite::TLS13_AES_128_GCM_SHA256,
            CipherSuite::TLS13_AES_256_GCM_SHA384,
            CipherSuite::TLS13_CHACHA20_POLY1305_SHA256,
        ];
        provider.cipher_suites.sort_by_key(|suite| order.iter().position(|&name| name == suite.suite()));
        let signer = provider
            .key_provider
            .load_private_key(PrivatePkcs8KeyDer::from(key.pkcs8().to_vec()).into())
            .map_err(internal)?;
        let spki = CertificateDer::from(key.id().to_spki());
        Ok(Tls {
            provider: Arc::new(provider),
            key: Arc::new(CertifiedKey::new(vec![spki], signer)),
            protocol: protocol.as_bytes().to_vec(),
        })
    }

    /// Returns the settings of a server that asks `check` about the key of each client.
    pub(super) fn server(&self, check: CheckNode) -> Result<QuicServerConfig> {
        let mut config = rustls::ServerConfig::builder_with_provider(Arc::clone(&self.provider))
            .with_protocol_versions(&[&rustls::version::TLS13])
            .map_err(internal)?
            .with_client_cert_verifier(Arc::new(self.verifier(check)))
            .with_cert_resolver(Arc::new(AlwaysResolvesServerRawPublicKeys::new(Arc::clone(&self.key))));
        config.alpn_protocols = vec![self.protocol.clone()];
        config.session_storage = Arc::new(NoServerSessionStorage {});
        config.send_tls13_tickets = 0;
        QuicServerConfig::try_from(config).map_err(internal)
    }

    /// Returns the settings of a client that asks `check` about the key of the server.
    pub(super) fn client(&self, check: CheckNode) -> Result<QuicClientConfig> {
        let mut config = rustls::ClientConfig::builder_with_provider(Arc::clone(&self.provider))
            .with_protocol_versions(&[&rustls::version::TLS13])
            .map_err(internal)?
            .dangerous()
            .with_custom_certificate_verifier(Arc::new(self.verifier(check)))
            .with_client_cert_resolver(Arc::new(AlwaysResolvesClientRawPublicKeys::new(Arc::clone(&self.key))));
        config.alpn_protocols = vec![self.protocol.clone()];
        config.resumption = Resumption::disabled();
        // The key says who the server is; its name is not known, and nobody should learn of it.
        config.enable_sni = false;
        QuicClientConfig::try_from(config).map_err(internal)
    }

    fn verifier(&self, check: CheckNode) -> RawKeyVerifier {
        RawKeyVerifier { algorithms: self.provider.signature_verification_algorithms, check }
    }
}

fn internal(error: impl fmt::Display) -> Diagnostic {
    Diagnostic::new(format!("TLS cannot be set up: {error}")).of_kind(ErrorKind::Internal)
}

/// Checks the key of the other side, and its signature of the handshake.
struct RawKeyVerifier {
    algorithms: WebPkiSupportedAlgorithms,
    check: CheckNode,
}

impl RawKeyVerifier {
    fn check(&self, entity: &CertificateDer<'_>, others: &[CertificateDer<'_>]) -> Result<(), Error> {
        let node = NodeId::from_spki(entity).filter(|_| others.is_empty());
        let node = node.ok_or_else(|| Error::General("it did not show an Ed25519 key".to_owned()))?;
        (self.check)(node).map_err(Error::General)
    }

    fn signature(
        &self,
        message: &[u8],
        entity: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        let key = SubjectPublicKeyInfoDer::from(entity.as_ref());
        verify_tls13_signature_with_raw_key(message, &key, signature, &self.algorithms)
    }
}

impl fmt::Debug for RawKeyVerifier {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RawKeyVerifier").finish_non_exhaustive()
    }
}

/// An error for the version of TLS that is never negotiated.
fn only_tls13() -> Error {
    Error::General("only TLS 1.3 is spoken".to_owned())
}

impl ServerCertVerifier for RawKeyVerifier {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        self.check(end_entity, intermediates).map(|()| ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        Err(only_tls13())
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.signature(message, cert, dss)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        vec![SignatureScheme::ED25519]
    }

    fn requires_raw_public_keys(&self) -> bool {
        true
    }
}

impl ClientCertVerifier for RawKeyVerifier {
    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        &[]
    }

    fn verify_client_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        _: UnixTime,
    ) -> Result<ClientCertVerified, Error> {
        self.check(end_entity, intermediates).map(|()| ClientCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        Err(only_tls13())
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.signature(message, cert, dss)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        vec![SignatureScheme::ED25519]
    }

    fn requires_raw_public_keys(&self) -> bool {
        true
    }
}
